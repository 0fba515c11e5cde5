"""Samples of the units of a launch: warps or work-groups, the parts of an NDRange, weights."""

"""Kernels that the analysis was not written with, by theme, and the extents that follow from their texts."""

"""Compile, analyse and run tasks in children, from claim to result."""

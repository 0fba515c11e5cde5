"""Families: kernels whose sources are near-copies of each other."""

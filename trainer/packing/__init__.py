"""Kernels with many launch configs, laid out in few sequences: which, in what order, with what mask."""

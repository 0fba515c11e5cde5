"""Counted work against the GPU's own counters: ``python -m benchmarks.device.hardware_counts``."""

"""The CUDA driver: PTX, its resources, and launches of it."""

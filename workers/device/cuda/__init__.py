"""The CUDA driver: load the PTX of OpenCL kernels, find its resources, launch it."""

"""From OpenCL C source to kernels with signatures and static features."""

"""Features of kernels and launches that models may use."""

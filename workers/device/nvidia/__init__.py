"""What NVIDIA's tools say of a GPU, and the locks that share one."""

"""What NVIDIA's libraries report of a GPU, and the locks by which collectors share one."""

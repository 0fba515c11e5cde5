"""How collecting scales over actors and GPUs."""

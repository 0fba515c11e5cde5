"""What is launched: tasks, launch configs, and what their buffers hold."""

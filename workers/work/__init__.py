"""Count what a launch executes by running a sample of its work-items on a CPU device."""

"""What a launch executes, counted by running a sample of its work-groups on a CPU device."""

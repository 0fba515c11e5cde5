"""What launching and timing on a device costs."""

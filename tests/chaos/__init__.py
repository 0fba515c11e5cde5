"""SIGKILL of real collectors and their children, again and again, and what must survive it."""

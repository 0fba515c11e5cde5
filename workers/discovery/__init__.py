"""Find which devices this machine has, which are usable, and which one a selector means."""

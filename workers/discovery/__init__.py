"""Which devices this machine has, whether they work, and which one a selector means."""

"""How a launch becomes tokens: kernel first (prefix), everything that differs between launches last (suffix)."""

"""How a launch becomes tokens.

The kernel comes first (prefix), everything that differs between its launches comes last (suffix).
"""

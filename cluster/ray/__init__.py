"""The door to Ray: its runtime and its actors."""

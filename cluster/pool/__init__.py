"""Actors in their slots: start, watch, restart."""

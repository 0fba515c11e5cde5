"""Collecting: claim tasks, execute them, commit and publish their results."""

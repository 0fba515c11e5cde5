"""Child processes for code that may hang, crash or use up memory."""

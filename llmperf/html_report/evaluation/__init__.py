"""The report of an evaluation."""

"""The report of a corpus."""

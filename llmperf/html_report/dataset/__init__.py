"""The report of a dataset."""

"""The report's section about one kernel."""

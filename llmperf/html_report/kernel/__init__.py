"""The report's page of one kernel."""

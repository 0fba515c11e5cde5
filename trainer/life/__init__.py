"""A run's life: prepare, fit, publish."""

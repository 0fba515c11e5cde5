"""The stages of a training: prepare, fit, publish."""

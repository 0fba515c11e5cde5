"""Predictions of a trained run for launches of one kernel, through the ``Predictor`` interface."""

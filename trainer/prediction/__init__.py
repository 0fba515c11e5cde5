"""Answers of a trained run about launches of one kernel. Knows models as ``Predictor`` only."""

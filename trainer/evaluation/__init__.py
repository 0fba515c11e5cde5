"""Intervals, tables of predictions and metrics of a model, through the ``Predictor`` interface."""

"""How good a predictor is: intervals, tables of predictions, metrics. Knows models as ``Predictor`` only."""

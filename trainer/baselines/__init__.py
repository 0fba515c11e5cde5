"""Predictors over the launch features, and baselines that every model must beat."""

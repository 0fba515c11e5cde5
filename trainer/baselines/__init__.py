"""Predictors over the launch features: what a language model must beat."""

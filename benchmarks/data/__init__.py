"""Corpora and datasets that benchmarks use."""

"""Compact tables of a dataset without sources, and its rebuilding from them and the corpus."""

"""Launches as tokens: prompt forms, tokenizers, truncation. The door to ``tokenizers``."""

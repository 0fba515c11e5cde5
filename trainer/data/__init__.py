"""Training data: usable rows of a dataset, their parts, their tokens, ranges of their features."""

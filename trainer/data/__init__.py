"""A dataset as models see it: usable rows, their parts, what the fit rows looked like."""

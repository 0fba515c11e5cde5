"""Training speed of a language model here, compared with the released and a tuned recipe."""

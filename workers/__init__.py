"""One machine: from the source of a kernel to timed samples in a dataset.

Owns everything between a ``.cl`` file and a committed shard on one host: source, signature, inputs,
launch plan, timing, and the loop that commits. Knows neither Ray nor training.
"""

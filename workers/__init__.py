"""One machine: source, signature, inputs, launch plan, timed samples, and the loop that commits them.

Owns everything between a ``.cl`` file and a committed shard on one host. Knows neither Ray nor training.
"""

"""Dataset to prediction: features, baselines, evaluation.

Imports neither ``workers`` nor ``cluster``: it reads datasets through ``llmperf_common.store``.
"""

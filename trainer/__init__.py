"""From a dataset to predictions: features, baselines, evaluation.

Imports neither ``workers`` nor ``cluster``: it reads datasets through ``llmperf_common.store``.
"""

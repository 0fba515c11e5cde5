"""From a dataset to predictions: features, baselines, evaluation.

This package imports neither ``workers`` nor ``cluster``. It reads datasets through
``llmperf_common.store``.
"""

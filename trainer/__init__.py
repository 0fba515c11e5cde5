"""Dataset to prediction: features, baselines, evaluation.

Knows neither workers nor cluster: it reads datasets through ``llmperf_common.store`` and gets kernels as records.
"""

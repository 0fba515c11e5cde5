"""Presets as data: TOML files that ``llmperf_common.config`` reads. No code."""

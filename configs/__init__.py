"""Presets: TOML files that ``llmperf_common.config`` reads. This package has no code."""

"""The rule by which a run child times a launch config: the values of ``timing`` that it needs.

Imports nothing: each run child imports this module, and ``workers/config.py``, which declares the
keys, their ranges and their defaults, imports pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass

WALL_BUDGET_FACTOR = 5.0
"""Readings of a config also end when their wall time reaches this multiple of ``sample_budget_ms``.
The budget itself counts launch time only, so it does not limit the time for refilling buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRule:
    """How one launch config is timed; ``TimingConfig`` describes each value under the same name."""

    warmups: int
    min_readings: int
    max_readings: int
    relative_standard_error: float
    sample_budget_ms: float
    max_launch_ms: float
    cold_readings: int
    batch_step_share: float
    spin_up_ms: float
    payload_checks: bool

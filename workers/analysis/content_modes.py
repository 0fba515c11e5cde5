"""The content modes: with which values probes fill buffers and floating-point scalars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentMode:
    """How the buffers of some probes are filled; the designed points use the defaults."""

    seed: int = 0
    limit: int = 16
    spread: float = 1.0
    floats: float = 1.0
    """Value of the floating-point scalars."""


DEFAULT_MODE = ContentMode()
OTHER_CONTENTS = (
    ContentMode(limit=1, spread=0.0),
    ContentMode(seed=1),
    ContentMode(seed=2, limit=100, spread=50.0),
    ContentMode(seed=3, limit=2, spread=0.01),
    ContentMode(seed=4, limit=-16, spread=-1.0),
)
"""Modes with zeros, other values, larger values, mostly ones, and negative values. If sizes alone
decide a kernel's accesses, no mode changes the accesses."""
OTHER_FLOATS = (ContentMode(floats=2.5), ContentMode(floats=-2.5))
"""Modes that give the floating-point scalars other values than 1.0."""

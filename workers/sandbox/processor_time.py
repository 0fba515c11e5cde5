"""Limits on a child's processor time: the system ends a child that uses more."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def allow_cpu(seconds: float) -> None:
    """Let SIGXCPU end this process after its threads have used ``seconds`` more processor time."""
    _set_limit(max(1, math.ceil(sum(os.times()[:2]) + seconds)))  # a negative limit means none


@contextmanager
def allowed_cpu(seconds: float) -> Iterator[None]:
    """Limit the processor time, as ``allow_cpu`` does, until the block is left."""
    allow_cpu(seconds)
    try:
        yield
    finally:
        _set_limit(resource.RLIM_INFINITY)


def _set_limit(wanted: int) -> None:
    """Set the soft limit to ``wanted`` seconds, or to the hard limit if that is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    unlimited = resource.RLIM_INFINITY
    possible = wanted if hard == unlimited else hard if wanted == unlimited else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (possible, hard))

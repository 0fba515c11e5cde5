"""What a child may use of the processor: the system ends one that uses more."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def allow_cpu(seconds: float) -> None:
    """Let the system end this process (SIGXCPU) when it has used so many seconds of processor time more, all threads together."""
    _set_limit(max(1, math.ceil(sum(os.times()[:2]) + seconds)))  # below 0 it would be no limit


@contextmanager
def allowed_cpu(seconds: float) -> Iterator[None]:
    """Do so until the block is left."""
    allow_cpu(seconds)
    try:
        yield
    finally:
        _set_limit(resource.RLIM_INFINITY)


def _set_limit(wanted: int) -> None:
    """Set the limit, or the hard one where that is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    unlimited = resource.RLIM_INFINITY
    possible = wanted if hard == unlimited else hard if wanted == unlimited else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (possible, hard))

"""The other processes of a training, as the first one sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Conductor:
    """How the process that prepares and publishes reaches those that only fit.

    ``ranks`` is None where this process is alone: ``trainer/fit`` then starts a group of one.
    """

    ranks: Any = None


ALONE = Conductor()

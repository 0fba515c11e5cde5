"""The phases of a run child, and how long it may be silent in each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from workers.config import TimingConfig
from workers.execution.limits import Limits
from workers.measure.device_lock import GONE_TIMEOUT_S
from workers.sandbox.child import Child
from workers.sandbox.processor_use import SPINNING_SHARE, SpinCheck
from workers.sandbox.run_children import START_TIMEOUT_S

PREPARE_TIMEOUT_S = GONE_TIMEOUT_S + 10.0
"""Seconds in which a child with the device lock must check the device. If the last holder of the
lock has died, its process must end in this time, too."""

_WATCHED_AFTER_S = 0.1
"""Seconds of silence in a config after which the child's processor time is watched. Few configs
take so long, and a look costs some 0.1 ms."""


class Phase(Enum):
    """What a run child does; in ``STARTING`` and ``IDLE`` it has no job."""

    STARTING = auto()
    IDLE = auto()
    LOADING = auto()
    WAITING = auto()
    """The program is loaded, and the child waits, without a limit, for the device lock."""
    PREPARING = auto()
    """The child holds the device and checks that it is sound; the kernel causes no failure here."""
    HOLDING = auto()
    """The child holds the device and has announced no config yet."""
    IN_CONFIG = auto()
    BETWEEN = auto()


ON_DEVICE = frozenset({Phase.PREPARING, Phase.HOLDING, Phase.IN_CONFIG, Phase.BETWEEN})
"""The death of a child in one of these phases may leave the card in a bad state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A limit on the silence of a run child.

    Attributes:
        limit_s: seconds without a message after which the child is killed.
        key: for the message: the configuration key that sets the limit, or the note that this key
            is not set; "" if no key can set the limit.
    """

    limit_s: float
    key: str = ""

    def describe(self) -> str:
        """Return the message for a child that exceeded the limit."""
        where = f" ({self.key})" if self.key else ""
        return f"killed after {self.limit_s:g} s without an answer{where}"


def patience_in(phase: Phase, limits: Limits, timing: TimingConfig) -> Patience | None:
    """Return how long a child may be silent in a phase; None if there is no limit."""
    if phase in (Phase.IDLE, Phase.WAITING):
        return None
    if phase is Phase.STARTING:
        return Patience(limit_s=START_TIMEOUT_S)
    if phase is Phase.LOADING:
        return Patience(limit_s=limits.build_timeout_s, key="limits.build_timeout_s")
    if phase is Phase.PREPARING:
        return Patience(limit_s=PREPARE_TIMEOUT_S + timing.spin_up_ms / 1e3)
    return Patience(limit_s=limits.config_timeout_s, key="limits.config_timeout_s")


class SilenceWatch:
    """Tells when a run child has been silent for too long."""

    def __init__(self, limits: Limits, timing: TimingConfig) -> None:
        self._limits, self._timing = limits, timing
        self._check: SpinCheck | None = None
        """Watches a child that has been silent in a config for ``_WATCHED_AFTER_S``."""

    def exceeded(self, child: Child, phase: Phase, now_s: float) -> Patience | None:
        """Return the limit that a child's silence has exceeded, or None."""
        silent_s = now_s - child.last_heard_s
        patience = patience_in(phase, self._limits, self._timing)
        if patience is not None and silent_s > patience.limit_s:
            return patience
        if phase is not Phase.IN_CONFIG or silent_s < _WATCHED_AFTER_S:
            self._check = None
            return None
        limit_s = self._limits.spin_timeout_s
        if self._check is None:
            least_cpu_s = SPINNING_SHARE * (limit_s - _WATCHED_AFTER_S)
            self._check = SpinCheck(child.pid, now_s, least_cpu_s=least_cpu_s)
        self._check.look(now_s)
        if silent_s <= limit_s or not self._check.spins(now_s):
            return None
        return Patience(limit_s=limit_s, key="limits.config_timeout_s is not set")

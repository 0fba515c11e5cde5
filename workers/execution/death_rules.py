"""Decide to what a run child's death is charged, and when more configs of its kernel are skipped.

A death means that a process ended by itself or by a signal, or was silent for longer than its phase
allows. Owns one rule for each phase, the two limits, and the texts of the rows of configs that are
not tried. ``run_lane.py`` applies the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Strategy
from workers.execution.limits import Limits
from workers.execution.run_phases import Phase


class Charged(Enum):
    """What a death counts against."""

    NOTHING = auto()
    """No part of the task has begun, so a new child begins the task."""
    DEVICE = auto()
    """No kernel has run, so a new child tries again. After several deaths in a row, the device
    counts as lost."""
    KERNEL = auto()
    """No config was announced. After ``limits.deaths_to_quarantine`` deaths the kernel fails."""
    CONFIG = auto()
    """The death counts against the config that was announced last, or reported last."""


class Excuse(Enum):
    """Whether to excuse a SIGKILL by another process, so that it is not charged to the kernel."""

    NEVER = auto()
    ONCE = auto()
    """Excuse the first kill in a config or before the configs, but not a second one, because it may
    mean that the kernel needs too much memory."""
    ALWAYS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathRule:
    """The consequences of a death in one phase.

    ``on_silence`` and ``on_exit`` are the failure codes of the row; None if the death gives no row.
    If the child has sent a traceback, the code is ``internal_error`` and nothing is excused.
    """

    charged: Charged
    excuse: Excuse = Excuse.NEVER
    stage: Stage | None = None
    on_silence: FailureCode | None = None
    on_exit: FailureCode | None = None

    def code(self, *, is_silence: bool, has_traceback: bool) -> FailureCode:
        """Return the failure code of the row; raises AssertionError if the rule gives no row."""
        code = self.on_silence if is_silence else self.on_exit
        assert code is not None, "this death gives no row"
        return FailureCode.INTERNAL_ERROR if has_traceback else code

    def failure(self, detail: str, *, is_silence: bool, has_traceback: bool) -> Failure:
        """Return the failure of the row; raises AssertionError if the rule gives no row."""
        assert self.stage is not None, "this death gives no row"
        code = self.code(is_silence=is_silence, has_traceback=has_traceback)
        return Failure(code=code, stage=self.stage, detail=detail)


_IN_LAUNCH = DeathRule(
    charged=Charged.CONFIG,
    excuse=Excuse.ONCE,
    stage=Stage.LAUNCH,
    on_silence=FailureCode.HANG,
    on_exit=FailureCode.DEVICE_FAULT,
)

DEATH_RULES: Mapping[Phase, DeathRule] = MappingProxyType(
    {
        Phase.STARTING: DeathRule(charged=Charged.NOTHING),
        Phase.IDLE: DeathRule(charged=Charged.NOTHING),
        Phase.LOADING: DeathRule(
            charged=Charged.KERNEL,
            excuse=Excuse.ONCE,
            stage=Stage.BUILD,
            on_silence=FailureCode.BUILD_TIMEOUT,
            on_exit=FailureCode.COMPILER_CRASH,
        ),
        Phase.WAITING: DeathRule(charged=Charged.DEVICE),
        Phase.PREPARING: DeathRule(charged=Charged.DEVICE),
        Phase.HOLDING: replace(_IN_LAUNCH, charged=Charged.KERNEL),
        Phase.IN_CONFIG: _IN_LAUNCH,
        Phase.BETWEEN: replace(_IN_LAUNCH, excuse=Excuse.ALWAYS),
    }
)
"""The rule for each phase in which a child can die."""


def is_given_up(num_deaths: int, limits: Limits) -> bool:
    """Whether a kernel has ended so many processes that its other configs are quarantined."""
    return num_deaths >= limits.deaths_to_quarantine


def given_up_strategies(num_faults: Counter[Strategy], limit: int) -> set[Strategy]:
    """Return the input strategies of which ``limit`` or more configs have faulted."""
    return {strategy for strategy, count in num_faults.items() if count >= limit}


def kernel_given_up(num_deaths: int) -> Failure:
    """Return the failure of the configs that are not tried after too many deaths."""
    return _not_tried(f"the kernel had ended {num_deaths} processes")


def strategy_given_up(limit: int) -> Failure:
    """Return the failure of configs that only given-up input strategies ask for."""
    return _not_tried(f"launch configs of the same input strategy have faulted ({limit})")


def _not_tried(why: str) -> Failure:
    return Failure(code=FailureCode.QUARANTINED, stage=Stage.LAUNCH, detail=f"not tried: {why}")

"""When the rest of a kernel, or of one of its input strategies, is given up because its launches end processes.

Owns the two limits and the words of the rows that are not tried. What a death counts against is ``death_rules.py``'s.
"""

from __future__ import annotations

from collections import Counter

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Strategy
from workers.execution.limits import Limits


def is_kernel_given_up(num_deaths: int, limits: Limits) -> bool:
    """Whether a kernel has ended so many processes that no other of its configs is tried."""
    return num_deaths >= limits.deaths_to_quarantine


def given_up_strategies(num_faults: Counter[Strategy], limit: int) -> set[Strategy]:
    """Return the input strategies of a kernel of which ``limit`` configs have faulted."""
    return {strategy for strategy, count in num_faults.items() if count >= limit}


def kernel_given_up(num_deaths: int) -> Failure:
    """Return the failure of the configs that are not tried any more."""
    return _not_tried(f"the kernel had ended {num_deaths} processes")


def strategy_given_up(limit: int) -> Failure:
    """Return the failure of configs that only such input strategies ask for."""
    return _not_tried(f"launch configs of the same input strategy have faulted ({limit})")


def _not_tried(why: str) -> Failure:
    return Failure(code=FailureCode.QUARANTINED, stage=Stage.LAUNCH, detail=f"not tried: {why}")

"""Which planned configs are launched to find their access ranges, and what ends these launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import LaunchConfig, Strategy
from tests.unit.workers.execution.test_access_check import CONFIGS, SIGNATURE, config
from tests.unit.workers.plan.test_launch_plan import kernel
from workers.analysis.planned_access import planned_access_ranges
from workers.device.interface import AccessRange, DeviceFailure, ProbeRecord

SOURCE = "__kernel void k(__global float *a) { a[get_global_id(0)] = 1; }"
WHOLE = ProbeRecord(
    access_ranges=(AccessRange(position=0, start_bytes=0, end_bytes=4, site=0),),
    turns=1,
    trace=0,
    exceeded=False,
    overflow=False,
)
CUT = replace(WHOLE, exceeded=True)


class ScriptedProber:
    """Gives one record after the other, or raises it, whatever is launched."""

    def __init__(self, *records: ProbeRecord | DeviceFailure | None) -> None:
        self._records = iter(records)
        self.num_launched = 0

    def run(self, *_: object) -> tuple[ProbeRecord | None]:
        self.num_launched += 1
        record = next(self._records)
        if isinstance(record, DeviceFailure):
            raise record
        return (record,)


def ranges_of(
    prober: ScriptedProber, configs: list[LaunchConfig], source: str = SOURCE
) -> list[ProbeRecord | None]:
    one = replace(kernel(*SIGNATURE.arguments), source=source)
    return list(planned_access_ranges(one, configs, prober, without_barriers=False))  # type: ignore[arg-type]


def of(strategy: Strategy, items: int) -> LaunchConfig:
    return replace(config(items), strategies=(strategy,))


def test_a_launch_that_was_cut_off_ends_those_of_its_strategy_alone() -> None:
    configs = [
        of(Strategy.SIMPLE, 64), of(Strategy.MEMORY_ANALYSIS, 64),
        of(Strategy.SIMPLE, 128), of(Strategy.MEMORY_ANALYSIS, 128),
    ]  # fmt: skip
    assert ranges_of(ScriptedProber(CUT, WHOLE, WHOLE), configs) == [CUT, WHOLE, None, WHOLE]


def test_a_failed_launch_ends_those_of_its_strategies_alone() -> None:
    configs = [of(Strategy.SIMPLE, 64), of(Strategy.MEMORY_ANALYSIS, 64)]
    failure = Failure(code=FailureCode.LAUNCH_ERROR, stage=Stage.PROBE, detail="no memory")
    assert ranges_of(ScriptedProber(DeviceFailure(failure), WHOLE), configs) == [None, WHOLE]
    with pytest.raises(DeviceFailure, match="no memory"):
        ranges_of(ScriptedProber(DeviceFailure(failure, sticky=True)), configs)


def test_nothing_is_launched_after_a_launch_that_was_cut_off() -> None:
    for records, num_launched in (
        ((WHOLE, WHOLE, WHOLE), 3),
        ((WHOLE, CUT, WHOLE), 2),
        ((None, WHOLE), 1),
    ):
        prober = ScriptedProber(*records)
        told = [*records[:num_launched], None, None, None][:3]
        assert ranges_of(prober, list(CONFIGS[:3])) == told
        assert prober.num_launched == num_launched


def test_of_what_cannot_be_instrumented_nothing_is_told() -> None:
    assert ranges_of(ScriptedProber(), list(CONFIGS[:3]), SOURCE.replace("k(", "another(")) == []

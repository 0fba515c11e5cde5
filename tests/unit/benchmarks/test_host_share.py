"""The host's share of a launch: what blocks say together."""

from __future__ import annotations

import numpy as np

from benchmarks.device.host_share import MODES, Block, correlation, summary


def made(mode: str, process: int, event_ns: float, enqueue_ns: float) -> Block:
    return Block(
        process=process, round=0, mode=mode, event_ns=event_ns, event_iqr_ns=900.0,
        enqueue_ns=enqueue_ns, python_loop_ns=1e6, correlation=0.7,
    )  # fmt: skip


def test_event_time_that_follows_the_call_has_its_slope() -> None:
    blocks = [made("alone", one, 8000 + 0.3 * call, call) for one, call in enumerate((1e4, 2e4))]
    blocks += [made(mode, one, 8000.0, 1e4) for mode in MODES[1:] for one in (0, 1)]
    alone, bound = (line.split() for line in summary(blocks)[1:3])
    assert alone[:5] == ["alone", "12500", "900", "1500", "1500"]
    assert alone[-4:] == ["0.70", "1.00", "0.30", "1000"]
    assert bound[-3:] == ["0.00", "0.00", "1000"]


def test_what_does_not_vary_follows_nothing() -> None:
    assert correlation(np.ones(3), np.arange(3.0)) == 0.0
    assert correlation(np.arange(1.0), np.arange(1.0)) == 0.0

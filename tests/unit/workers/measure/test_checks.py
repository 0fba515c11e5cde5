"""Judgements on numbers and on outputs."""

from __future__ import annotations

import pytest

from llmperf_common.records import Device
from workers.device.replay_file import ReplayDevice
from workers.measure.checks import above_floor, is_stationary, payload_checks


def device(dram: float | None = 100.0, l2: float | None = 1000.0) -> Device:
    values = ReplayDevice(peak_dram_gbps=dram, peak_l2_gbps=l2, last_level_cache_bytes=1_000_000)
    return values.record()


@pytest.mark.parametrize(
    ("median_ns", "footprint", "cold", "expected"),
    [
        (100_000, 10_000_000, False, True),  # 100 GB/s: exactly the DRAM peak
        (50_000, 10_000_000, False, False),  # 200 GB/s from DRAM cannot be
        (1_000, 1_000_000, False, True),  # fits the cache: its peak counts
        (500, 1_000_000, False, False),
        (1_000, 1_000_000, True, False),  # the same when the cache was flushed
        (1, 0, False, True),
    ],
)
def test_floor(median_ns: float, footprint: int, cold: bool, expected: bool) -> None:
    assert above_floor(median_ns, footprint, device(), cold=cold) is expected


def test_floor_is_unknown_without_peaks() -> None:
    assert above_floor(1.0, 10**9, device(dram=None)) is None
    assert above_floor(1.0, 10, device(l2=None)) is None


def test_stationary() -> None:
    assert is_stationary([100, 100, 100]) is None
    assert is_stationary([100, 103, 99, 101, 100, 102]) is True
    assert is_stationary([100, 100, 100, 110, 111, 112]) is False
    assert is_stationary([100, 100, 110, 110], timer_step_ns=32) is True


class MemoryLauncher:
    """A launcher whose kernel is a Python function of (input seed, launch number)."""

    footprint_bytes = 0
    needs_refill = False

    def __init__(self, kind: str) -> None:
        self.kind, self.seed, self.output, self.launches = kind, 0, 0, 0

    def refill(self, *, seed: int, everything: bool = False) -> None:
        self.seed = seed if everything else self.seed
        self.output = seed

    def launch(self, count: int = 1) -> float:
        self.launches += count
        if self.kind == "writes poison":
            self.output = 0xA5
        elif self.kind == "constant":
            self.output = 1234
        elif self.kind == "random":
            self.output = 10_000 + self.launches
        elif self.kind == "good":
            self.output = self.seed * 3 + 1_000_000
        return 1.0

    def flush_cache(self) -> None:
        raise AssertionError("payload checks need no cold cache")

    def poison_output(self, byte: int) -> None:
        self.output = byte

    def output_digest(self) -> str:
        return str(self.output)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("good", (True, True, True)),
        ("constant", (True, True, False)),
        ("random", (True, False, True)),
        ("silent", (False, None, None)),
        ("writes poison", (True, True, False)),
    ],
)
def test_payload(kind: str, expected: tuple[bool | None, ...]) -> None:
    checks = payload_checks(MemoryLauncher(kind), seed=7)
    assert (checks.writes_output, checks.deterministic, checks.input_sensitive) == expected

"""Judgements on one sample: does the kernel do anything, and can its time be true?

Owns the checks of a kernel's outputs, which need further launches (*payload* checks), and the
checks that need only numbers (trend, floor). A check sets a flag and never drops a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from llmperf_common.records import Checks, Device
from workers.device.interface import Launcher

POISON_BYTES = (0xA5, 0x5A)
"""Bytes written before a launch. There are two, because a kernel may itself write one of them."""

OTHER_SEED = 0x5EED  # XORed into a config's seed to get other inputs
STATIONARY_TOLERANCE = 0.05
"""Share by which the medians of the first and second half of the readings may differ."""
FLOOR_TOLERANCE = 0.8
"""A time passes if it is at least this share of the floor. The measured peak comes from a triad,
which does not reach the memory's limit; a kernel that only reads is faster by some per cent."""
FEWEST_READINGS_FOR_A_TREND = 4


def payload_checks(launcher: Launcher, *, seed: int) -> Checks:
    """Judge what the kernel writes, with up to four launches; the contents of its buffers are lost.

    ``writes_output``: buffers filled with one of two poison bytes change. ``deterministic``: equal
    inputs give equal bytes. ``input_sensitive``: inputs of another seed give different bytes. The
    last two are None for a kernel that writes nothing.

    Raises:
        DeviceFailure: A launch failed.
    """
    before, first = _run(launcher, seed=seed, poison=POISON_BYTES[0])
    writes_output = first != before
    if not writes_output:
        before, after = _run(launcher, seed=seed, poison=POISON_BYTES[1])
        writes_output = after != before
    if not writes_output:
        return Checks(writes_output=False)
    _, again = _run(launcher, seed=seed, poison=POISON_BYTES[0])
    _, other = _run(launcher, seed=seed ^ OTHER_SEED, poison=POISON_BYTES[0])
    return Checks(writes_output=True, deterministic=again == first, input_sensitive=other != first)


def _run(launcher: Launcher, *, seed: int, poison: int) -> tuple[str, str]:
    """Return the digests of the outputs before and after one launch on fresh, poisoned buffers."""
    launcher.refill(seed=seed, everything=True)
    launcher.poison_output(poison)
    before = launcher.output_digest()
    launcher.launch()
    return before, launcher.output_digest()


def is_stationary(readings: Sequence[float], *, timer_step_ns: float | None = None) -> bool | None:
    """Return whether the readings, ns, have no trend; None if there are fewer than four.

    >>> is_stationary([100.0, 101.0, 99.0, 100.0]), is_stationary([100.0, 100.0, 150.0, 150.0])
    (True, False)
    """
    if len(readings) < FEWEST_READINGS_FOR_A_TREND:
        return None
    half = len(readings) // 2
    early, late = statistics.median(readings[:half]), statistics.median(readings[-half:])
    allowed_ns = max(STATIONARY_TOLERANCE * min(early, late), 2 * (timer_step_ns or 0.0))
    return abs(early - late) <= allowed_ns


def above_floor(
    median_ns: float, footprint_bytes: int, device: Device, *, cold: bool = False
) -> bool | None:
    """Return whether the time is long enough to move the config's bytes once at the measured peak.

    The peak is that of DRAM if the cache cannot hold the data (``cold``, or more than twice the
    cache's size), otherwise that of the cache. The result is None if the peak is unknown. A kernel
    that touches only part of its buffers may be faster than this floor, so the check only flags.

    Args:
        median_ns: median of the warm readings (with ``cold``, of the cold readings).
        footprint_bytes: bytes of all global and constant buffers.
        device: the device's record, with measured peaks.
        cold: whether the cache was flushed before each launch.
    """
    beyond_cache = footprint_bytes > 2 * device.last_level_cache_bytes
    peak_gbps = device.peak_dram_gbps if cold or beyond_cache else device.peak_l2_gbps
    if not peak_gbps:
        return None
    floor_ns = footprint_bytes / peak_gbps
    return median_ns >= FLOOR_TOLERANCE * floor_ns

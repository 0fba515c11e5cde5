"""The analysis child: finds out what kernels and planned launches touch, one after another; its parent kills it when one hangs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from llmperf_common.analysis import Analysis
from llmperf_common.store.tables.analysis_rows import storable
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceFailure, DeviceRef, ProbeRecord
from workers.device.replay import SELECTOR_PREFIX, ReplayAnalyser
from workers.sandbox.channel import (
    AccessCheckJob,
    AccessRanges,
    Analysed,
    AnalyseJob,
    Channel,
    CompilerReady,
)
from workers.sandbox.child_main import serve

_KERNELS_PER_CHILD = 100
"""Then it ends and another takes its place: compilers keep what they have built in memory and on disk."""


def main(channel: Channel, argument: str) -> None:
    """Serve ``AnalyseJob``s and ``AccessCheckJob``s on ``channel`` until it closes or enough were served; ``argument`` is the DeviceRef as JSON."""
    try:
        analyse, access_ranges = _open(DeviceRef(**json.loads(argument)))
    except LookupError as error:
        _tell_no_device(channel, error)
        return
    channel.send(CompilerReady())
    for _ in range(_KERNELS_PER_CHILD):
        job = channel.receive()
        assert isinstance(job, AnalyseJob | AccessCheckJob), job
        is_lost = False
        if isinstance(job, AccessCheckJob):
            is_lost = _send_access_ranges(channel, access_ranges(job))
        else:
            try:
                analysis = analyse(job)
            except DeviceFailure as error:
                analysis, is_lost = unknown_analysis(job.kernel, error.failure.detail), error.sticky
            channel.send(Analysed(analysis=storable(analysis)))
        if is_lost:
            return


def _tell_no_device(channel: Channel, error: LookupError) -> None:
    """Answer the first job with why the device cannot be opened."""
    channel.send(CompilerReady())
    job = channel.receive()
    if not isinstance(job, AnalyseJob):
        raise error
    analysis = unknown_analysis(job.kernel, f"the device cannot be opened: {error}")
    channel.send(Analysed(analysis=storable(analysis), no_device=True))


def _send_access_ranges(channel: Channel, found: Iterator[ProbeRecord | None]) -> bool:
    """Send each record as soon as it is known: the next config may never end. Return whether the context was lost."""
    records: list[ProbeRecord | None] = []
    is_lost = False
    try:
        for record in found:
            records.append(record)
            channel.send(AccessRanges(records=tuple(records), is_last=False))
    except DeviceFailure as error:
        is_lost = error.sticky
    channel.send(AccessRanges(records=tuple(records)))
    return is_lost


_Analyse = Callable[[AnalyseJob], Analysis]
_FindAccessRanges = Callable[[AccessCheckJob], Iterator[ProbeRecord | None]]


def _open(ref: DeviceRef) -> tuple[_Analyse, _FindAccessRanges]:
    if ref.selector.startswith(SELECTOR_PREFIX):
        replay = ReplayAnalyser(ref)
        return lambda job: replay.analyse(job.kernel), lambda _job: iter(())
    from workers.analysis.analyse import analyse_kernel  # noqa: PLC0415
    from workers.analysis.opening import open_prober  # noqa: PLC0415
    from workers.analysis.planned_access import planned_access_ranges  # noqa: PLC0415
    from workers.analysis.probing import probe_limits  # noqa: PLC0415

    prober = open_prober(ref)
    limits = probe_limits(prober.device)
    return (
        lambda job: analyse_kernel(
            job.kernel, prober, limits, without_barriers=job.without_barriers
        ),
        lambda job: planned_access_ranges(
            job.kernel, job.configs, prober, without_barriers=job.without_barriers
        ),
    )


if __name__ == "__main__":
    serve(main)

"""Find the access ranges of planned launch configs with an instrumented copy on a CPU device.

Owns these launches. They show whether chosen inputs make a kernel access memory outside its buffers
(``workers/work/input_choice.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llmperf_common.analysis import ContentsRule
from llmperf_common.records import ArgumentKind, Kernel, LaunchConfig, Strategy
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.rewriter import UnresolvedError
from workers.analysis.copy.source_copy import NO_BARRIERS
from workers.device.interface import (
    DeviceFailure,
    Instrumented,
    ProbeLaunch,
    Prober,
    ProbeRecord,
)

_MAX_TURNS = 2**21
"""Maximum loop iterations of a launch. Then its loops are cut off, so its access ranges are
incomplete."""


def planned_access_ranges(
    kernel: Kernel, configs: Sequence[LaunchConfig], prober: Prober, *, without_barriers: bool
) -> Iterator[ProbeRecord | None]:
    """Yield each config's access ranges in order; None if they cannot be determined.

    Nothing is yielded if the kernel cannot be instrumented. Such a kernel has no analysis, either.

    Args:
        kernel: a kernel with a signature.
        configs: the launch configs, the smallest first. If a config could not be launched, or its
            loops were cut off, then later configs of the same input strategies are not launched.
        prober: the prober of a CPU device.
        without_barriers: launch a copy without barriers. Use it for a kernel in which not all
            work-items reach a barrier, because such a barrier would end the process.

    Raises:
        DeviceFailure: The device's context was lost (sticky); its process can run nothing more.
    """
    try:
        instrumented = instrument(kernel.source, kernel.name, kernel.build_options)
    except UnresolvedError:
        return
    if without_barriers and not instrumented.lacks_barriers:
        instrumented = replace(instrumented, source=NO_BARRIERS + instrumented.source)
    ended: set[Strategy] = set()
    for config in configs:
        record = None
        if not ended.issuperset(config.strategies):
            record = _record(kernel, instrumented, config, prober)
        if record is None or record.exceeded:
            ended.update(config.strategies)
        yield record


def _record(
    kernel: Kernel, instrumented: Instrumented, config: LaunchConfig, prober: Prober
) -> ProbeRecord | None:
    try:
        (record,) = prober.run(kernel, instrumented, [_launch(config)])
    except DeviceFailure as error:
        if error.sticky:
            raise
        return None
    return record


def _launch(config: LaunchConfig) -> ProbeLaunch:
    return ProbeLaunch(
        global_size=config.global_size,
        local_size=config.local_size,
        scalars={
            one.position: one.value
            for one in config.args
            if one.kind is ArgumentKind.SCALAR and one.value is not None
        },
        limits={
            one.position: one.contents.limit
            for one in config.args
            if one.contents and one.contents.rule is not ContentsRule.SIGNED
        },
        rules={one.position: one.contents.rule for one in config.args if one.contents},
        max_turns=_MAX_TURNS,
    )

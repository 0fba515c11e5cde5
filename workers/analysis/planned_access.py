"""Access ranges of planned launch configs: an instrumented copy of the kernel runs them on a CPU device.

Owns the launches. Where a GPU is to run a kernel whose extents are not known, this shows beforehand which configs would
leave their buffers, and with them cost a context; what follows from it is ``workers/execution/access_check.py``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llmperf_common.analysis import ContentsRule
from llmperf_common.records import ArgumentKind, Kernel, LaunchConfig
from workers.analysis.analyse import NO_BARRIERS
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.rewriter import UnresolvedError
from workers.device.interface import DeviceFailure, ProbeLaunch, Prober, ProbeRecord

_MAX_TURNS = 2**21
"""Of all loops of a launch: they are cut off there, and the launch shows less than the kernel does."""


def planned_access_ranges(
    kernel: Kernel, configs: Sequence[LaunchConfig], prober: Prober, *, without_barriers: bool
) -> Iterator[ProbeRecord | None]:
    """Yield what each config touches, in order and as soon as it is known, up to the first of which that cannot be told.

    Args:
        kernel: with its signature.
        configs: small ones first: none is launched after one whose loops were cut off.
        prober: of a CPU device.
        without_barriers: launch a copy without them; they end a process where not all work-items come to them.

    Raises:
        DeviceFailure: The device's context was lost (sticky): its process is of no further use.
    """
    try:
        instrumented = instrument(kernel.source, kernel.name, kernel.build_options)
        if without_barriers:
            instrumented = replace(instrumented, source=NO_BARRIERS + instrumented.source)
        for config in configs:
            (record,) = prober.run(kernel, instrumented, [_launch(config)])
            yield record
            if record is None or record.exceeded:
                return
    except UnresolvedError:
        return  # such a kernel has no analysis either
    except DeviceFailure as error:
        if error.sticky:
            raise


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

"""The analysis child: analyses kernels; if it hangs, its parent kills it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from llmperf_common.analysis import Analysis
from llmperf_common.store.tables.analysis_rows import storable
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceFailure, DeviceRef, Prober
from workers.device.opencl.cache import compile_for_any_local_size
from workers.device.selectors import is_replay
from workers.sandbox.channel import Channel
from workers.sandbox.child_main import serve
from workers.sandbox.confinement import confine
from workers.sandbox.messages import (
    Analysed,
    AnalyseJob,
    CompilerReady,
)
from workers.sandbox.processor_time import allowed_cpu

if TYPE_CHECKING:
    from workers.work.opencl_virtual import OpenclVirtualDevice

_KERNELS_PER_CHILD = 100
"""Number of kernels after which a new child takes over, because compilers keep builds in memory and
on disk."""


def main(channel: Channel, argument: str) -> None:
    """Serve jobs on ``channel`` until it closes or enough are done; ``argument``: a DeviceRef."""
    compile_for_any_local_size()
    ref = DeviceRef(**json.loads(argument))
    confine(ref, has_small_buffers=True)
    try:
        analyse = _open(ref)
    except LookupError as error:
        _tell_no_device(channel, error)
        return
    channel.send(CompilerReady())
    for _ in range(_KERNELS_PER_CHILD):
        job = channel.receive()
        assert isinstance(job, AnalyseJob), job
        if _tell_analysis(channel, job, analyse):
            return


def _tell_analysis(channel: Channel, job: AnalyseJob, analyse: _Analyse) -> bool:
    """Analyse a kernel and send the result; return whether the context was lost."""
    told: list[Analysis] = []
    is_lost = False

    def tell(analysis: Analysis) -> None:
        told.append(analysis)
        channel.send(Analysed(analysis=storable(analysis), is_last=False))

    try:
        analysis = analyse(job, tell)
    except DeviceFailure as error:
        is_lost, detail = error.sticky, error.failure.detail
        known = told[-1].with_usual_inputs(detail) if told else None
        analysis = known or unknown_analysis(job.kernel, detail)
    channel.send(Analysed(analysis=storable(analysis)))
    return is_lost


def _tell_no_device(channel: Channel, error: LookupError) -> None:
    """Answer the first job with the reason why the device cannot be opened."""
    channel.send(CompilerReady())
    job = channel.receive()
    assert isinstance(job, AnalyseJob), job
    analysis = unknown_analysis(job.kernel, f"the device cannot be opened: {error}")
    channel.send(Analysed(analysis=storable(analysis), no_device=True))


_Tell = Callable[[Analysis], None]
_Analyse = Callable[[AnalyseJob, _Tell], Analysis]


def _open(ref: DeviceRef) -> _Analyse:
    if is_replay(ref.selector):
        from workers.device.replay import ReplayAnalyser  # noqa: PLC0415

        replay = ReplayAnalyser(ref)
        return lambda job, _tell: replay.analyse(job.kernel)
    from workers.analysis.analyse import judge_kernel  # noqa: PLC0415
    from workers.analysis.opening import open_prober  # noqa: PLC0415
    from workers.analysis.probing import probe_limits  # noqa: PLC0415

    prober = open_prober(ref)
    limits = probe_limits(prober.device)
    chooser = _Chooser(ref, prober)

    def analyse(job: AnalyseJob, tell: _Tell) -> Analysis:
        judged = judge_kernel(job.kernel, prober, limits, without_barriers=job.without_barriers)
        if not (job.choose and judged.may_be_idle):
            return judged.analysis
        return chooser.with_inputs(job, judged.analysis, tell)

    return analyse


class _Chooser:
    """Chooses inputs for kernels that may have idle work-items; opens its device when needed."""

    def __init__(self, ref: DeviceRef, prober: Prober) -> None:
        self._ref, self._prober = ref, prober
        self._device: OpenclVirtualDevice | None = None

    def with_inputs(self, job: AnalyseJob, analysis: Analysis, tell: _Tell) -> Analysis:
        """Send ``analysis``, then return it with chosen inputs; the choice may end the process."""
        from workers.work.input_choice import choose_inputs  # noqa: PLC0415
        from workers.work.opening import open_virtual  # noqa: PLC0415

        if analysis.failure or self._ref.selector.startswith("cuda"):
            return analysis
        tell(analysis)
        try:
            if self._device is None:
                self._device = open_virtual(self._ref)
            with allowed_cpu(job.choice_cpu_s):
                inputs = choose_inputs(
                    job.kernel,
                    analysis,
                    self._prober,
                    self._device,
                    without_barriers=job.without_barriers,
                )
        except LookupError as error:
            return analysis.with_usual_inputs(str(error))
        except DeviceFailure as error:
            if error.sticky:
                raise
            return analysis.with_usual_inputs(error.failure.detail)
        return replace(analysis, inputs=inputs)


if __name__ == "__main__":
    serve(main)

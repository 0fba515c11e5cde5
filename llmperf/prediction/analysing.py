"""The memory analysis of a kernel to predict: stored with the run, cached, or probed now.

Decides when and where a kernel is probed (run at small sizes on a CPU device), and owns the message
if it is not probed. The probes run in a child process that is killed after a time limit
(``workers/execution/analyse_ahead.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from llmperf.prediction.analysis_cache import AnalysisCache
from llmperf_common.analysis import Analysis
from llmperf_common.files.python_rows import python_rows
from llmperf_common.files.visible import shortened
from llmperf_common.records import Kernel
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.tables.analysis_rows import ANALYSIS_COLUMNS, analysis_from_row
from trainer.data.foreign_files import reading
from workers.device.interface import DeviceRef

ANALYSIS_TIMEOUT_S = 60.0
"""Maximum number of seconds for one kernel: the default of ``limits.analysis_timeout_s``, so that
predictions and ``collect`` get the same analysis."""

_KEEP_DEATH_S = 86_400.0
"""Seconds for which a failure by a timeout or by the death of the child process is cached: only one
day, because a busy machine can cause both."""

_MOST_CHARACTERS = 240
"""Maximum number of characters of a reason in a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A kernel's memory analysis, None if unknown; ``said`` is its origin, or why it is unknown."""

    analysis: Analysis | None
    said: str


@dataclass(slots=True)
class Analyst:
    """Analyses the memory accesses of kernels, each kernel once.

    Attributes:
        stored: the kernels on which a run was fitted, with their analyses.
        may_probe: whether probes may run on a device.
        cache: analyses stored for later processes.
        progress: called with one line before each step that takes seconds.
    """

    stored: pa.Table
    may_probe: bool = True
    cache: AnalysisCache | None = None
    progress: Callable[[str], object] = lambda _line: None
    _known: dict[str, Known] = field(default_factory=dict)
    _device: DeviceRef | str | None = None
    """The device for probes, or the reason why there is none; None before the first search."""

    def knows(self, kernel: Kernel) -> Known | None:
        """Return what is known without a probe; None for a kernel that was never analysed."""
        if kernel.kernel_id not in self._known:
            analysis = self._from_store(kernel.kernel_id)
            said = "the memory analysis stored with the model"
            if analysis is None and self.cache is not None and self.may_probe:
                analysis = self.cache.read(kernel.kernel_id)
                said = "a memory analysis made by an earlier prediction"
            if analysis is not None:
                self._known[kernel.kernel_id] = _known(analysis, said)
        return self._known.get(kernel.kernel_id)

    def find_out(self, kernel: Kernel) -> Known:
        """Return what is known; probe the kernel first if it was never analysed (takes seconds)."""
        known = self.knows(kernel)
        if known is None:
            known = self._probed(kernel)
            self._known[kernel.kernel_id] = known
        return known

    def _from_store(self, kernel_id: str) -> Analysis | None:
        if not set(ANALYSIS_COLUMNS) <= set(self.stored.column_names):
            return None  # an earlier version made the run, and stored only the extents
        row = pc.index(self.stored.column("kernel_id"), kernel_id).as_py()
        if row < 0:
            return None
        with reading(f"the memory analysis of kernel {kernel_id} in the model's kernels.parquet"):
            return analysis_from_row(next(python_rows(self.stored.slice(row, 1))))

    def cpu_device(self, what_for: str) -> DeviceRef | str:
        """Return the CPU OpenCL device, or why there is no such device.

        ``what_for`` names the purpose in a message.
        """
        from workers.discovery.find import NoDevice, choose  # noqa: PLC0415  (needed by few)

        if self._device is None:
            self.progress(f"looking for a CPU OpenCL device, {what_for}")
            found = choose("cpu")
            no_device = "no usable CPU OpenCL device to probe the kernel on (see `llmperf doctor`)"
            self._device = no_device if isinstance(found, NoDevice) else found
        return self._device

    def _probed(self, kernel: Kernel) -> Known:
        if not self.may_probe:
            return Known(analysis=None, said="probing was switched off")
        from workers.execution.analyse_ahead import analyse_one  # noqa: PLC0415  (needed by few)

        device = self.cpu_device("to analyse the kernel's memory accesses")
        if isinstance(device, str):
            return Known(analysis=None, said=device)
        self.progress(f"probing kernel {shortened(kernel.name)!r} on {device.name}")
        try:
            found_out = analyse_one(kernel, device, timeout_s=ANALYSIS_TIMEOUT_S)
        except (StoreError, OSError) as error:
            return Known(analysis=None, said=f"the kernel could not be probed: {error}")
        if found_out.no_device:  # the stored verdict about this runtime is outdated
            self._device = "the CPU OpenCL device cannot be opened: see `llmperf doctor --again`"
            return Known(analysis=None, said=self._device)
        analysis = found_out.analysis
        if self.cache is not None:
            keep_s = None if found_out.ended_itself else _KEEP_DEATH_S
            self.cache.write(kernel.kernel_id, analysis, keep_s=keep_s)
        return _known(analysis, f"a memory analysis made now on {device.name}")


def _known(analysis: Analysis, said: str) -> Known:
    if analysis.failure:
        why = " ".join(analysis.failure.split())
        if len(why) > _MOST_CHARACTERS:  # keep both ends: a traceback or a compiler's stderr
            half = _MOST_CHARACTERS // 2
            why = f"{why[:half]} … {why[-half:]}"
        return Known(analysis=analysis, said=f"the kernel's memory analysis failed: {why}")
    return Known(analysis=analysis, said=said)

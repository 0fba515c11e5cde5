"""Memory analysis of a whole corpus before anything is timed: ``llmperf corpus build --analyse``.

Owns the loop over a few killable children. An analysis, and its result after a hang or a death, is
the same as in a task (``analysing.py``). ``analyse_one`` analyses a single kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from llmperf_common.analysis import Analysis
from llmperf_common.awake_clock import POLL_S
from llmperf_common.ledger.holder import this_process
from llmperf_common.records import Kernel
from workers.corpus.parquet import Corpus
from workers.device.interface import DeviceRef
from workers.execution.analysing import (
    analyse_job,
    death_text,
    left_behind,
    max_attempts,
    timeout_text,
)
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.messages import Analysed, AnalyseJob, FromChild
from workers.sandbox.scratch import check_space, scratch_folder

ANALYSIS_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Item:
    kernel: Kernel
    analysis: Analysis | None = None
    """What the child has found so far."""
    no_device: bool = False
    ended_itself: bool = False
    num_attempts: int = 0
    was_killed: bool = False


class _AheadWork:
    """The ``PoolWork`` of this loop: every item ends with an analysis."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    def job(self, item: _Item) -> AnalyseJob:
        item.num_attempts += 1
        item.analysis = None
        return analyse_job(item.kernel, item.num_attempts)

    def excuses_kill(self, item: _Item) -> bool:
        is_first, item.was_killed = not item.was_killed, True
        item.num_attempts -= is_first
        return is_first

    def take(self, item: _Item, answer: FromChild) -> bool:
        assert isinstance(answer, Analysed), answer
        item.analysis = answer.analysis
        item.no_device = answer.no_device
        item.ended_itself = answer.is_last
        return answer.is_last

    def timed_out(self, item: _Item, after_s: float) -> None:
        item.analysis = left_behind(item.kernel, item.analysis, timeout_text(after_s))

    def died(self, item: _Item, how: str, report: str, seconds: float) -> bool:
        is_open = item.analysis is None and not report
        if is_open and item.num_attempts < max_attempts(item.kernel):
            return True
        item.analysis = left_behind(item.kernel, item.analysis, death_text(how, report))
        return False

    def forget(self, item: _Item) -> None:
        """Do nothing: an analysis leaves no files."""


def analyse_corpus(
    corpus: Corpus,
    ref: DeviceRef,
    *,
    num_children: int | None = None,
    timeout_s: float = ANALYSIS_TIMEOUT_S,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    keep: Callable[[str, Analysis], None] = lambda _kernel_id, _analysis: None,
) -> Corpus:
    """Return ``corpus`` with the memory analysis of every kernel that can run.

    Kernels that have an analysis keep it. The kernels' ids and the corpus' hash do not change,
    because neither covers the analyses. A run with this corpus plans its configs by these analyses
    and does not analyse the kernels again.

    Args:
        corpus: the kernels.
        ref: the device that launches instrumented kernels; each OpenCL device gives equal results.
        num_children: number of processes at once; by default one for each core.
        timeout_s: seconds for each kernel. After this time, the analysis gets a reason instead of
            extents.
        progress: receives the numbers of finished kernels and of all kernels.
        keep: called with the id and the analysis of each finished kernel, but only if another run,
            on any device, would give the same analysis.

    Raises:
        StoreError: The scratch folder is full.
    """
    wanted = [one for one in corpus.kernels if one.failure is None and one.analysis is None]
    children = min(num_children or os.cpu_count() or 1, max(1, len(wanted)))
    found: dict[str, Analysis | None] = {}
    for item in _analysed(wanted, ref, children, timeout_s):
        found[item.kernel.kernel_id] = item.analysis
        if item.analysis is not None and item.ended_itself and not item.no_device:
            keep(item.kernel.kernel_id, item.analysis)
        progress(len(found), len(wanted))
    return replace(
        corpus,
        kernels=tuple(
            replace(one, analysis=found.get(one.kernel_id, one.analysis)) for one in corpus.kernels
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAnalysis:
    """The analysis of one kernel, and how it ended.

    Attributes:
        analysis: the result; its ``failure`` says why there is none.
        no_device: whether the device could not be opened.
        ended_itself: whether the child neither died nor was killed for its time, so that a second
            try would give the same result.
    """

    analysis: Analysis
    no_device: bool
    ended_itself: bool


def analyse_one(kernel: Kernel, ref: DeviceRef, *, timeout_s: float) -> OneAnalysis:
    """Analyse one kernel; the arguments are those of ``analyse_corpus``.

    Raises:
        StoreError: The scratch folder is full.
    """
    (item,) = _analysed([kernel], ref, 1, timeout_s)
    assert item.analysis is not None, "a finished item has an analysis"
    return OneAnalysis(
        analysis=item.analysis, no_device=item.no_device, ended_itself=item.ended_itself
    )


def _analysed(
    kernels: Sequence[Kernel], ref: DeviceRef, num_children: int, timeout_s: float
) -> Iterator[_Item]:
    """Yield the item of each kernel as soon as it is finished."""
    num_left = len(kernels)
    with scratch_folder(this_process()) as scratch:
        starter = ChildStarter(scratch)
        pool: ChildPool[_Item] = ChildPool(
            start_child=lambda name: starter.start("workers.execution.analysis_child", name, ref),
            name="analyse",
            work=_AheadWork(timeout_s),
            num_children=num_children,
        )
        for kernel in kernels:
            pool.submit(_Item(kernel=kernel))
        try:
            while num_left:
                pool.step(POLL_S)
                finished = pool.take_finished()
                num_left -= len(finished)
                if finished:
                    check_space(scratch)  # a full disk makes good kernels fail
                yield from finished
        finally:
            pool.close()

"""Which kernels are compared, and which launch configs of them.

Owns the seeded draw, the choice of kernels to leave out, and the conversion of LLMPerf's dataset to
the jobs of the other parts.

Two sorts of kernels are left out of every part: kernels in which a process of a collection died
(``device_fault``, ``hang``, ``quarantined``, ``compiler_crash``, ``build_timeout``,
``internal_error``), because a plain loop would not survive them, and kernels without an ok sample.
For the other kernels, every launch config is timed that LLMPerf launched and found ok or too long.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.collecting.collectors.jobs import Job, Work, launch_from_row
from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.ids import sha256_hex
from llmperf_common.records import ArgumentKind, Kernel
from llmperf_common.store.tables.reader import Dataset
from workers.corpus.parquet import Corpus

DEADLY = frozenset(
    {
        FailureCode.DEVICE_FAULT,
        FailureCode.HANG,
        FailureCode.QUARANTINED,
        FailureCode.COMPILER_CRASH,
        FailureCode.BUILD_TIMEOUT,
        FailureCode.INTERNAL_ERROR,
    }
)
_NEVER_LAUNCHED = (": not launched", ": not reached")
"""Texts at which ``failure_detail`` ends for launch configs that LLMPerf did not launch
(``run_order.py``, ``run_lane.py``)."""
_RUNNABLE = (
    ArgumentKind.GLOBAL_BUFFER,
    ArgumentKind.CONSTANT_BUFFER,
    ArgumentKind.LOCAL_BUFFER,
    ArgumentKind.SCALAR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A kernel to leave out; ``reason``: a failure code, ``no_ok_sample`` or ``not_reached``."""

    kernel_id: str
    reason: str


def draw(corpus: Corpus, num_kernels: int, seed: int) -> Corpus:
    """Return a corpus of ``num_kernels`` random kernels that can run (0: all of them).

    If some kernels of the corpus are analysed, only these are drawn, so that the measured time
    includes no analysis.
    """
    usable = [one for one in corpus.kernels if _can_run(one)]
    analysed = [one for one in usable if one.analysis is not None]
    pool = analysed or usable
    wanted = min(num_kernels or len(pool), len(pool))
    chosen = random.Random(seed).sample(pool, wanted)  # noqa: S311  (no secret)
    return corpus_of(chosen)


def corpus_of(kernels: Iterable[Kernel]) -> Corpus:
    """Return a corpus of these kernels."""
    ordered = tuple(sorted(kernels, key=lambda kernel: kernel.kernel_id))
    ids = "\n".join(kernel.kernel_id for kernel in ordered)
    return Corpus(kernels=ordered, sha256=sha256_hex(ids.encode()))


def _can_run(kernel: Kernel) -> bool:
    return (
        kernel.failure is None
        and kernel.signature is not None
        and all(argument.kind in _RUNNABLE for argument in kernel.signature.arguments)
    )


def analysed_share(corpus: Corpus) -> float:
    """Return the share of kernels that were analysed before; 0 for an empty corpus."""
    known = sum(kernel.analysis is not None for kernel in corpus.kernels)
    return known / max(1, len(corpus.kernels))


def left_out(corpus: Corpus, rows: Iterable[Mapping[str, Any]]) -> tuple[Verdict, ...]:
    """Return the kernels to leave out, from the ``samples`` rows of a collection of ``corpus``."""
    statuses: dict[str, Counter[str]] = {kernel.kernel_id: Counter() for kernel in corpus.kernels}
    for row in rows:
        if row["kernel_id"] in statuses:
            statuses[row["kernel_id"]][row["status"]] += 1
    verdicts = []
    for kernel_id, counts in statuses.items():
        deadly = [code.value for code in FailureCode if code in DEADLY and counts[code.value]]
        if deadly:
            verdicts.append(Verdict(kernel_id=kernel_id, reason=deadly[0]))
        elif not counts:
            verdicts.append(Verdict(kernel_id=kernel_id, reason="not_reached"))
        elif not counts[OK_STATUS]:
            verdicts.append(Verdict(kernel_id=kernel_id, reason="no_ok_sample"))
    return tuple(verdicts)


def keep(corpus: Corpus, verdicts: Iterable[Verdict]) -> Corpus:
    """Return the kernels that are not left out."""
    gone = {verdict.kernel_id for verdict in verdicts}
    return corpus_of(kernel for kernel in corpus.kernels if kernel.kernel_id not in gone)


def was_launched(row: Mapping[str, Any]) -> bool:
    """Return whether LLMPerf launched the config of a ``samples`` row without fault or refusal.

    If the plain loop launched the other configs, too, it would spend time on launches that LLMPerf
    avoided.
    """
    if row["status"] == FailureCode.OVER_TIME_BUDGET.value:
        detail = row["failure_detail"] or ""
        return not any(words in detail for words in _NEVER_LAUNCHED)
    return bool(row["status"] == OK_STATUS)


def work_of(
    corpus: Corpus, dataset: Dataset, rows: Sequence[Mapping[str, Any]], ref: Mapping[str, Any]
) -> Work:
    """Return the launch configs of ``dataset`` that were launched, for the kernels of ``corpus``.

    Args:
        corpus: the kernels, none of them left out.
        dataset: LLMPerf's dataset.
        rows: the ``samples`` of the dataset in the order in which they were made.
        ref: the fields of the ``DeviceRef`` by which a fresh process reaches the device.
    """
    kernels = {kernel.kernel_id: kernel for kernel in corpus.kernels}
    launches: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kernel_id"] in kernels and was_launched(row):
            launches.setdefault(row["kernel_id"], []).append(row)
    (device,) = dataset.devices().to_pylist()
    return Work(
        device_ref=dict(ref),
        timing=dataset.run.config["timing"],
        timer_step_ns=device["timer_step_ns"],
        last_level_cache_bytes=device["last_level_cache_bytes"],
        jobs=tuple(_job(kernels[one], made) for one, made in launches.items()),
    )


def pick(work: Work, ok_ids: frozenset[str], *, per_kernel: int, seed: int) -> Work:
    """Return ``per_kernel`` random ok launch configs of each kernel; kernels in random order.

    If the time runs out, a random part of the kernels has been timed, because the order is random.
    """
    chosen: list[Job] = []
    generator = random.Random(seed)  # noqa: S311  (no secret)
    for job in work.jobs:
        good = [launch for launch in job.launches if launch.sample_id in ok_ids]
        drawn = generator.sample(good, min(per_kernel, len(good)))
        chosen += [job.only(launch) for launch in drawn]
    generator.shuffle(chosen)
    return Work(
        device_ref=work.device_ref,
        timing=work.timing,
        timer_step_ns=work.timer_step_ns,
        last_level_cache_bytes=work.last_level_cache_bytes,
        jobs=tuple(chosen),
    )


def shuffled(work: Work, seed: int) -> Work:
    """Return the work with its kernels, and each kernel's launch configs, in a random order.

    The addresses that a driver gives to a process depend on the process's earlier allocations.
    Without a shuffle, each kernel would get the same addresses in every run.
    """
    generator = random.Random(seed)  # noqa: S311  (no secret)
    jobs = []
    for job in generator.sample(work.jobs, len(work.jobs)):
        launches = tuple(generator.sample(job.launches, len(job.launches)))
        jobs.append(dataclasses.replace(job, launches=launches))
    return dataclasses.replace(work, jobs=tuple(jobs))


def _job(kernel: Kernel, rows: Sequence[Mapping[str, Any]]) -> Job:
    assert kernel.signature is not None, "only kernels that can run are drawn"
    return Job(
        kernel_id=kernel.kernel_id,
        name=kernel.name,
        source=kernel.source,
        build_options=kernel.build_options,
        arguments=kernel.signature.arguments,
        launches=tuple(map(launch_from_row, rows)),
    )

"""The comparison, stage by stage, in one folder; a finished stage is not repeated.

Owns the folder: ``slice.parquet`` (drawn), ``screen/`` (a first collection, which finds the kernels
to leave out), ``kept.parquet``, ``ours/`` and ``repeat/`` (datasets), ``a/``, ``b/``, ``c/``,
``c_again/`` (``work.json``, ``log.jsonl``, ``stderr.txt``), ``stages.json`` (wall times),
``excluded.csv``.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.collecting.collectors.jobs import Work, without
from benchmarks.collecting.collectors.log import read_log, rows_of
from benchmarks.collecting.collectors.ours import Collect, Collected, read_collected
from benchmarks.collecting.collectors.plain_buffers import BUFFER_RULES
from benchmarks.collecting.collectors.plain_loop import BOUND_VARIABLE, BUFFERS_VARIABLE
from benchmarks.collecting.collectors.slicing import (
    Verdict,
    draw,
    keep,
    left_out,
    pick,
    shuffled,
    work_of,
)
from benchmarks.collecting.collectors.supervise import PartRun, run_each, run_until_done
from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.store.files.filesystem import StoreError
from workers.corpus.parquet import Corpus, read_corpus, write_corpus
from workers.device.interface import DeviceRef

PARTS = ("ours", "a", "b", "c")
PLAIN_AGAIN = "c_again"
_AS_IT_IS = {BUFFERS_VARIABLE: BUFFER_RULES[0], BOUND_VARIABLE: "0"}
"""Environment variables that select the basic variant of the plain loop for part (c), even if the
caller has set others."""
_LAUNCHED = (OK_STATUS, FailureCode.OVER_TIME_BUDGET)
_OTHERS = ("a", "b", "c", PLAIN_AGAIN)
"""Stages whose processes are told which device to use; ``llmperf collect`` finds it itself."""
CONFIGS_OF_A, CONFIGS_OF_B = 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in s; after ``silence_s`` without output a process of (b) or (c) is killed."""

    ours_s: float = 180.0
    a_s: float = 60.0
    b_s: float = 120.0
    c_s: float = 180.0
    each_a_s: float = 60.0
    silence_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is compared; ``options`` are further arguments of every ``llmperf collect``."""

    corpus: Path
    out: Path
    device: str
    num_kernels: int
    seed: int
    limits: Limits
    options: tuple[str, ...] = ()
    screen: bool = True
    repeat: bool = False


def draw_slice(settings: Settings, path: Path) -> None:
    """Write the corpus of the drawn kernels to ``path``, unless it exists. Raises CorpusError."""
    if not path.exists():
        corpus = read_corpus(settings.corpus)
        write_corpus(path, draw(corpus, settings.num_kernels, settings.seed))


class Comparison:
    """Runs the stages and reads their results.

    Args:
        settings: what is compared.
        ref: the reference by which a fresh process finds the device.
    """

    def __init__(self, settings: Settings, ref: DeviceRef) -> None:
        settings.out.mkdir(parents=True, exist_ok=True)
        path = settings.out / "stages.json"
        self.settings = settings
        self.stages: dict[str, dict[str, Any]] = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        )
        self._ref = ref

    # -- the kernels -------------------------------------------------------------------------------

    def choose_kernels(self) -> None:
        """Draw the slice and, with ``screen``, collect it once to find the kernels to leave out."""
        drawn, kept = self._path("slice.parquet"), self._path("kept.parquet")
        draw_slice(self.settings, drawn)
        if kept.exists():
            return
        corpus = read_corpus(drawn)
        verdicts: tuple[Verdict, ...] = ()
        if self.settings.screen:
            self.collect("screen", drawn)
            verdicts = left_out(corpus, self.collected("screen").rows)
        self._note_excluded("screen", verdicts)
        survivors = keep(corpus, verdicts)
        if not survivors.kernels:
            raise StoreError("no kernel of the slice gave an ok sample without a death")
        write_corpus(kept, survivors)

    @property
    def kept(self) -> Corpus:
        """The kernels that are compared."""
        return read_corpus(self._path("kept.parquet"))

    # -- the parts ---------------------------------------------------------------------------------

    def collect(self, name: str, corpus: Path | None = None) -> None:
        """Run ``llmperf collect`` into ``name/``, by default on the kept kernels."""
        if name in self.stages:
            return
        out = self._path(name)
        shutil.rmtree(out, ignore_errors=True)  # an interrupted run; its time is lost
        command = Collect(
            corpus=corpus or self._path("kept.parquet"),
            out=out,
            device=self.settings.device,
            max_s=self.settings.limits.ours_s,
            options=self.settings.options,
        )
        code, wall_s = command.run(self._environment(name))
        if code != 0:
            _say(f"llmperf collect into {name}/ ended with {code}: see {name}.txt")
        self.collected(name)  # raises if there is no result: the stage is then not done
        self._note(name, {"wall_s": wall_s, "exit_code": code})

    def run_part(self, part: str) -> None:
        """Run (a), (b) or (c) on LLMPerf's configs, or ``PLAIN_AGAIN`` on the configs of (c).

        A part that has run is not repeated, unless it could time nothing (``PartRun.problem``).
        """
        done = self.part_run(part)
        if done is not None and not done.problem:
            return
        folder = self._path(part)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        limits, environment = self.settings.limits, self._environment(part)
        work = self.work
        if part == "a":
            run = run_each(
                "benchmarks.collecting.collectors.fresh_process",
                self._picked(CONFIGS_OF_A),
                folder,
                environment={**environment, "PYOPENCL_NO_CACHE": "1"},
                max_s=limits.a_s,
                each_s=limits.each_a_s,
            )
        elif part == "b":  # with pyopencl's cache, because kernel_tuner does not disable it
            run = run_until_done(
                "benchmarks.collecting.collectors.tuner",
                self._picked(CONFIGS_OF_B),
                folder,
                environment=environment,
                max_s=limits.b_s,
                silence_s=limits.silence_s,
            )
        else:
            run = run_until_done(
                "benchmarks.collecting.collectors.plain_loop",
                work if part == "c" else self._work_of_plain(),
                folder,
                environment={**environment, **_AS_IT_IS, "PYOPENCL_NO_CACHE": "1"},
                max_s=limits.c_s,
                silence_s=limits.silence_s,
            )
        if run.problem:
            _say(f"part {part}: {run.problem}")
        self._note(part, dataclasses.asdict(run))

    def _work_of_plain(self) -> Work:
        """Return the configs that (c) has launched, in another order.

        The buffers then have the same sizes, but other addresses.
        """
        log = rows_of(read_log(self.log_path("c")))
        launched = {row["sample_id"] for row in log if row["status"] in _LAUNCHED}
        jobs = [
            dataclasses.replace(job, launches=launches)
            for job in self.work.jobs
            if (launches := tuple(one for one in job.launches if one.sample_id in launched))
        ]
        return shuffled(dataclasses.replace(self.work, jobs=tuple(jobs)), self.settings.seed)

    def part_run(self, part: str) -> PartRun | None:
        """Return the record of a part; None if the part has not run."""
        return PartRun(**self.stages[part]) if part in self.stages else None

    def collected(self, name: str) -> Collected:
        """Return the dataset ``name/``."""
        return read_collected(self._path(name))

    @cached_property
    def ours(self) -> Collected:
        """The dataset of *ours*."""
        return self.collected("ours")

    @cached_property
    def work(self) -> Work:
        """The configs for (a), (b), (c): those of *ours*, of kernels in which no process died."""
        verdicts = left_out(self.kept, self.ours.rows)
        self._note_excluded("ours", verdicts)
        ref = dataclasses.asdict(self._ref)
        work = work_of(self.kept, self.ours.dataset, self.ours.rows, ref)
        gone = frozenset(verdict.kernel_id for verdict in verdicts)
        return dataclasses.replace(work, jobs=without(work.jobs, gone))

    def _picked(self, per_kernel: int) -> Work:
        return pick(
            self.work, self.ours.ok_ids, per_kernel=per_kernel, seed=self.settings.seed + per_kernel
        )

    # -- the folder --------------------------------------------------------------------------------

    def excluded(self) -> list[dict[str, str]]:
        """Return the kernels that were left out, with stage and reason."""
        path = self._path("excluded.csv")
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def log_path(self, part: str) -> Path:
        """Return the path of a part's log."""
        return self._path(part) / "log.jsonl"

    def _note_excluded(self, when: str, verdicts: tuple[Verdict, ...]) -> None:
        rows = [row for row in self.excluded() if row["when"] != when]
        rows += [
            {"kernel_id": one.kernel_id, "when": when, "reason": one.reason} for one in verdicts
        ]
        with self._path("excluded.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ("kernel_id", "when", "reason"))
            writer.writeheader()
            writer.writerows(rows)

    def _note(self, stage: str, facts: Mapping[str, Any]) -> None:
        shutil.rmtree(self._path("caches"), ignore_errors=True)
        self.stages[stage] = dict(facts)
        self._path("stages.json").write_text(json.dumps(self.stages, indent=1), encoding="utf-8")

    def _path(self, name: str) -> Path:
        return self.settings.out / name

    def _environment(self, part: str) -> dict[str, str]:
        """Return an environment with empty compiler caches: no part may use earlier binaries."""
        caches = (self._path("caches") / part).resolve()
        shutil.rmtree(caches, ignore_errors=True)
        variables = {"CUDA_CACHE_PATH": "cuda", "XDG_CACHE_HOME": "xdg"}
        found = dict(os.environ)
        if part in _OTHERS:
            found |= self._ref.environment
            variables["POCL_CACHE_DIR"] = "pocl"
        for variable, name in variables.items():
            (caches / name).mkdir(parents=True)
            found[variable] = str(caches / name)
        return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")

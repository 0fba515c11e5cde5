"""A training on one GPU and on several, with one Ray node for each GPU of this host, as Ray jobs.

``python -m benchmarks.models.training_scale --data DIR --out OUT [--workers 2] [--preset
codegen-2b] [--steps 16] [--every 8] [--set KEY=VALUE]… [PHASE …]``

Each phase is a ``ray job submit … -- llmperf train --cluster --workers N --init random`` on the run
in ``OUT/run``. The phases, in this order:

- ``one``: one process, from the first step to ``--steps``.
- ``all``: all processes, from the first step. After the first checkpoint (``--every`` steps) one
  process gets SIGKILL, and all processes are restarted from that checkpoint. The phase ends with
  the second checkpoint.
- ``half``: half of the processes continue from the newest checkpoint for four steps and write
  another checkpoint. Needs four processes.
- ``alone``: one process continues from the newest checkpoint for four steps.
- ``stage-3``: all processes with ZeRO-3, from the first step.

``OUT/moments.csv`` gets the log of each fit (a row for each step; ``start`` counts the starts
within a phase), and ``OUT/PHASE.log`` the job's output. The program prints for each phase the
seconds of a step, the ratio to ``one`` over the same steps, and how far the losses are from those
of ``one``. SIGKILL ends the processes when a phase has reached its end, so publishing is not
measured.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PHASES = ("one", "all", "half", "alone", "stage-3")
_WARM_STEPS = 3
"""Number of first steps of a start that are not timed, because torch compiles during them."""
_ACTOR, _DRIVER = "ray::_Process", "llmperf train"
"""Parts of the command lines of a fitting process and of the job."""
_MORE_STEPS = 4
"""Steps of the phases ``half`` and ``alone``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A line of a fit's log."""

    phase: str
    start: int
    moment: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Bench:
    """The run and the lines of its log that were seen so far."""

    given: argparse.Namespace
    dashboard: str
    logged: list[Logged] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> Path:
        """The training's folder."""
        return Path(self.given.out).absolute() / "run"

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"{time.monotonic() - self.started:6.1f} s  {line}", flush=True)

    def phase(self, name: str, workers: int, until: Callable[[], bool], *settings: str) -> None:
        """Run a job until ``until`` holds or the job ends; then kill its processes."""
        known = self._lines()
        job = self._submit(workers, *settings)
        self.say(f"{name}: {workers} processes")
        start, failed = 1, False
        deadline = time.monotonic() + self.given.limit_s
        while True:
            lines = self._lines()
            if len(lines) < len(known):
                start, known = start + 1, lines[: self._kept(lines, known)]
            for line in lines[len(known) :]:
                self.logged.append(Logged(phase=name, start=start, moment=line))
                self.say(f"{name}: step {line['step']}, loss {line['loss']:.5f}")
            known = lines
            if until() or failed:
                break
            failed = time.monotonic() > deadline or self._is_over(job)
            time.sleep(0.1)
        self._keep_log(job, name)
        for one in _ours(_ACTOR, _DRIVER):
            _kill(one)
        _wait(lambda: not _ours(_ACTOR, _DRIVER), 60)
        if failed:
            raise SystemExit(f"{name}: ended too early; see {self.given.out}/{name}.log")

    def step(self, name: str) -> int:
        """Return the last step that a phase has logged."""
        return max((one.moment["step"] for one in self.logged if one.phase == name), default=0)

    def newest(self) -> int:
        """Return the step of the newest checkpoint."""
        folder = self.run / "fit" / "checkpoints"
        return max((int(path.name[5:]) for path in folder.glob("step-*")), default=0)

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = (self.run / "fit" / "fit.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    @staticmethod
    def _kept(lines: list[dict[str, Any]], known: list[dict[str, Any]]) -> int:
        """Return how many lines at the start of a shortened log are still the known lines."""
        same = (one == other for one, other in zip(lines, known, strict=False))
        return next((number for number, is_same in enumerate(same) if not is_same), len(lines))

    def _submit(self, workers: int, *settings: str) -> str:
        given, name = self.given, f"scale-{time.monotonic_ns()}"
        chosen = [*given.set, *settings, "log.every_steps=1", "log.tensorboard=false"]
        words = [
            "train", "--data", str(given.data.absolute()), "--out", str(self.run), "--preset", given.preset,
            "--init", "random", "--cluster", "--workers", str(workers),
            *(word for setting in chosen for word in ("--set", setting)),
        ]  # fmt: skip
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait", "--submission-id", name, "--",
            sys.executable, "-m", "llmperf", *words,
        ]  # fmt: skip
        told = ""
        for _ in range(60):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "RAY_ADDRESS": self.dashboard},
            )
            if done.returncode == 0:
                return name
            told = done.stdout + done.stderr
            time.sleep(1)  # the dashboard's agent is not up yet
        raise SystemExit(told)

    def _client(self) -> Any:
        from ray.job_submission import JobSubmissionClient  # noqa: PLC0415, TID251

        return JobSubmissionClient(self.dashboard)

    def _is_over(self, job: str) -> bool:
        return bool(self._client().get_job_status(job).is_terminal())

    def _keep_log(self, job: str, name: str) -> None:
        (Path(self.given.out) / f"{name}.log").write_text(self._client().get_job_logs(job))


def run_phases(bench: Bench) -> None:
    """Run the requested phases."""
    given = bench.given
    every, workers = given.every, given.workers
    often = f"checkpoint.every_steps={every}"
    fit = bench.run / "fit"
    if "one" in given.phases:
        shutil.rmtree(fit, ignore_errors=True)
        bench.phase("one", 1, lambda: bench.step("one") >= given.steps)
    if "all" in given.phases:
        shutil.rmtree(fit, ignore_errors=True)
        killed: list[psutil.Process] = []

        def is_done() -> bool:
            if not killed and bench.newest() == every and bench.step("all") >= every + 3:
                killed.append(max(_fitting(), key=lambda one: one.pid))
                _kill(killed[0])
                bench.say(f"all: killed process {killed[0].pid}")
            return bool(bench.newest() >= 2 * every)

        bench.phase("all", workers, is_done, often)
    if "half" in given.phases:
        end = bench.newest() + _MORE_STEPS
        often = f"checkpoint.every_steps={_MORE_STEPS}"
        bench.phase("half", workers // 2, lambda: bench.newest() >= end, often)
    if "alone" in given.phases:
        last = bench.newest() + _MORE_STEPS
        bench.phase("alone", 1, lambda: bench.step("alone") >= last)
    if "stage-3" in given.phases:
        shutil.rmtree(fit, ignore_errors=True)
        bench.phase(
            "stage-3", workers, lambda: bench.step("stage-3") >= every, "optimiser.zero_stage=3"
        )


def report(bench: Bench) -> None:
    """Write the moments and print their summary."""
    rows = [{"phase": one.phase, "start": one.start, **one.moment} for one in bench.logged]
    if not rows:
        return
    with (Path(bench.given.out) / "moments.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    base = {one.moment["step"]: one.moment["loss"] for one in bench.logged if one.phase == "one"}
    seconds = {name: step_seconds(bench.logged, name) for name in PHASES}
    for name, steps in seconds.items():
        if not steps:
            continue
        line = f"{name}: {statistics.mean(steps.values()):.3f} s a step ({len(steps)} steps)"
        rates = [one.moment for one in bench.logged if one.phase == name]
        rates = [one for one in rates if one["step"] in steps]
        line += f", {statistics.mean(one['samples_per_s'] for one in rates):.1f} samples/s"
        if rates[0]["mfu"] is not None:
            line += f", MFU {100 * statistics.mean(one['mfu'] for one in rates):.1f} %"
        common = sorted(set(steps) & set(seconds["one"]))
        if common and name != "one":
            ours, theirs = (sum(of[step] for step in common) for of in (steps, seconds["one"]))
            line += f", {theirs / ours:.3f} times one over {len(common)} equal steps"
        far = [
            abs(one.moment["loss"] - base[one.moment["step"]])
            for one in bench.logged
            if one.phase == name and one.moment["step"] in base
        ]
        if far and name != "one":
            line += f", losses within {max(far):.2e} of one's"
        print(line)


def step_seconds(logged: list[Logged], phase: str) -> dict[int, float]:
    """Return the seconds of a phase's steps, without steps that compile or follow a checkpoint."""
    found: dict[int, float] = {}
    starts = {one.start for one in logged if one.phase == phase}
    for start in sorted(starts):
        lines = [one.moment for one in logged if one.phase == phase and one.start == start]
        for before, one in zip(lines[_WARM_STEPS:], lines[_WARM_STEPS + 1 :], strict=False):
            found[one["step"]] = one["seconds"] - before["seconds"]
    middle = statistics.median(found.values()) if found else 0.0
    return {step: one for step, one in found.items() if one < 2 * middle}


@contextlib.contextmanager
def ray_nodes(workers: int, *, on_gpu: bool) -> Iterator[str]:
    """Start a head and a node with one GPU or CPU for each process; yield the dashboard's URL."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster  # noqa: PLC0415, TID251

    memory = 200 * 2**20
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": True, "dashboard_port": 18265}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": memory})
    try:
        for number in range(workers):
            seen: dict[str, Any] = {"CUDA_VISIBLE_DEVICES": str(number)} if on_gpu else {}
            one: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(on_gpu), "env_vars": seen}
            cluster.add_node(object_store_memory=memory, **one)
        cluster.wait_for_nodes()
        yield "http://127.0.0.1:18265"
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _ours(*words: str) -> list[psutil.Process]:
    """Return the processes of this program's cluster whose command line has one of the words."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            line = " ".join(one.cmdline())
            if any(word in line for word in words):
                found.append(one)
    return found


def _fitting() -> list[psutil.Process]:
    """Return the processes that fit: those that have loaded torch."""
    found = []
    for one in _ours(_ACTOR):
        with contextlib.suppress(psutil.Error):
            if any("libtorch" in mapped.path for mapped in one.memory_maps()):
                found.append(one)
    return found


def _kill(one: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        one.kill()


def _wait(is_true: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.1)


def main(words: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.models.training_scale")
    parser.add_argument("phases", nargs="*", metavar="PHASE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preset", default="codegen-2b")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=600.0, help="time limit of one phase")
    parser.add_argument("--cpu", action="store_true", help="run on CPUs, to try the program")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(words)
    if unknown := sorted(set(given.phases) - set(PHASES)):
        parser.error(f"no such phase: {', '.join(unknown)}; there are {', '.join(PHASES)}")
    given.phases = given.phases or list(PHASES)
    if given.workers < 4 and "half" in given.phases:
        given.phases.remove("half")
    given.out.mkdir(parents=True, exist_ok=True)
    with ray_nodes(given.workers, on_gpu=not given.cpu) as dashboard:
        bench = Bench(given=given, dashboard=dashboard)
        try:
            run_phases(bench)
        finally:
            report(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())

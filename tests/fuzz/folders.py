"""Mutated datasets, corpora, runs and run records through the commands that read them, each in a child that may be killed.

A finding is a traceback, a signal, an exit code that is not one of ours, a command that takes too long or too much memory, or a
file outside of what the command may write. ``python -m tests.fuzz.folders --number 2000 --seed 0``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.folder_mutate import add_odd_file, is_plain, mend_manifest, mend_run, mutate_file

CODES = frozenset({0, 2, 3, 4, 5})
SECONDS = 60.0
"""Of a command, on a machine that others use as well."""
MOST_BYTES = 2**30
MOST_OUTPUT_BYTES = 2**24
_PART_BYTES = 2**16
"""Capacity of a pipe."""
_ADDRESS_SPACE_SPARE_BYTES = 3 * 2**30


@dataclass(frozen=True, kw_only=True)
class World:
    """What is mutated: sound folders, made once."""

    folder: Path

    @property
    def data(self) -> Path:
        """A dataset."""
        return self.folder / "data"

    @property
    def corpus(self) -> Path:
        """A corpus file."""
        return self.folder / "corpus.parquet"

    @property
    def source(self) -> Path:
        """A kernel to predict."""
        return self.folder / "k.cl"

    def run(self, name: str) -> Path:
        """A finished training."""
        return self.folder / "runs" / name


def make_world(folder: Path) -> World:
    """Make the sound folders."""
    from tests.support.factories.dataset_factory import make_dataset, make_kernel, mixed_outcome  # noqa: PLC0415
    from tests.support.in_process import llmperf  # noqa: PLC0415
    from trainer.run.shipped import shipped_run  # noqa: PLC0415
    from workers.corpus.read import read_sources, write_corpus  # noqa: PLC0415

    world = World(folder=folder)
    kernels = [make_kernel(number) for number in range(14)]
    make_dataset(world.data, kernels=kernels, outcome_of=mixed_outcome, kernels_per_shard=7)
    sources = folder / "sources"
    sources.mkdir()
    for number, kernel in enumerate(kernels[:3]):
        (sources / f"{number}.cl").write_text(kernel.source)
    world.source.write_text(kernels[3].source)
    write_corpus(world.corpus, read_sources([sources]))
    (folder / "runs").mkdir()
    for preset in ("log-linear", "gbdt"):
        done = llmperf(
            "train", "--data", world.data, "--preset", preset, "--out", world.run(preset)
        )
        assert done.code == 0, done.err
    shipped = shipped_run()
    if shipped is not None:
        shutil.copytree(shipped, world.run("shipped"))
    return world


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mutant: what was done to it, and the commands it is put through; ``at`` is where it lies."""

    what: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]


def make_case(world: World, at: Path, *, seed: int, number: int) -> Case:
    """Make mutant ``number`` of ``seed`` below ``at``."""
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choices(("data", "run", "corpus", "resume"), (10, 8, 3, 1))[0]
    makers: dict[str, Callable[[World, Path, random.Random], Case]] = {
        "data": _data_case, "run": _run_case, "corpus": _corpus_case, "resume": _resume_case,
    }  # fmt: skip
    return makers[kind](world, at, draw)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if is_plain(path))


def _mutated_data(world: World, at: Path, draw: random.Random) -> tuple[Path, list[str]]:
    data = shutil.copytree(world.data, at / "data")
    what = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        if draw.random() < 0.1:
            what.append(add_odd_file(data, draw))
        else:
            what.append(mutate_file(draw.choice(_files(data)), draw))
    if draw.random() < 0.7:
        mend_manifest(data)
    return data, what


def _data_case(world: World, at: Path, draw: random.Random) -> Case:
    data, what = _mutated_data(world, at, draw)
    commands = [
        ("dataset", "verify", str(data)),
        ("status", str(data)),
        ("dataset", "stats", str(data)),
        ("dataset", "merge", str(data), str(world.data), "--out", str(at / "merged")),
    ]
    if draw.random() < 0.5:
        commands.append(
            ("train", "--data", str(data), "--preset", "log-linear", "--out", str(at / "trained"))
        )
    if draw.random() < 0.2:
        commands.append(("report", str(data), "--out", str(at / "report.html")))
    return Case(what=tuple(what), commands=tuple(commands))


def _run_case(world: World, at: Path, draw: random.Random) -> Case:
    names = sorted(path.name for path in (world.folder / "runs").iterdir())
    run = shutil.copytree(world.run(draw.choice(names)), at / "run")
    what = []
    for _ in range(draw.choice((1, 1, 2))):
        used = [
            path
            for path in _files(run)  # anew: a link to /dev/zero must not be mutated again
            if "baselines" not in path.parts
            and path.name not in ("model_card.md", "predictions.parquet", "metrics.json")
        ]
        what.append(mutate_file(draw.choice(used), draw))
    if draw.random() < 0.9:
        mend_run(run)
    sizes = ("--global-size", "4096", "--local-size", "64")
    commands = [("predict", str(world.source), "--model", str(run), *sizes)]
    if draw.random() < 0.3:
        commands.append(
            (
                "evaluate",
                str(run),
                "--data",
                str(world.data),
                "--split",
                "test",
                "--out",
                str(at / "evaluation"),
            )
        )
    return Case(what=tuple(what), commands=tuple(commands))


def _corpus_case(world: World, at: Path, draw: random.Random) -> Case:
    corpus = shutil.copy(world.corpus, at / "corpus.parquet")
    what = [mutate_file(corpus, draw)]
    commands = [("corpus", "stats", str(corpus))]
    if draw.random() < 0.15:
        commands.append(
            ("collect", "--corpus", str(corpus), "--out", str(at / "collected"), "--device", _replay(at),
             "--samples-per-kernel", "2")
        )  # fmt: skip
    return Case(what=tuple(what), commands=tuple(commands))


def _resume_case(world: World, at: Path, draw: random.Random) -> Case:
    data, what = _mutated_data(world, at, draw)
    sources = str(world.folder / "sources")
    command = (
        "collect",
        "--corpus",
        sources,
        "--out",
        str(data),
        "--device",
        _replay(at),
        "--samples-per-kernel",
        "2",
    )
    return Case(what=tuple(what), commands=(command,))


def _replay(at: Path) -> str:
    path = at / "replay.json"
    path.write_text(json.dumps({}))
    return f"replay:{path}"


def run_case(
    world: World, *, seed: int, number: int, seconds: float = SECONDS
) -> tuple[Case | None, list[str]]:
    """Make a mutant, put it through its commands in a child each, and return what is wrong."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        at = Path(folder)
        case = make_case(world, at, seed=seed, number=number)
        wrong = []
        for command in case.commands:
            found = run_command(command, seconds=seconds)
            if found:
                wrong.append(f"{' '.join(command[:2])}: {found}")
        strays = {path.name for path in at.iterdir()} - {
            "data", "run", "corpus.parquet", "merged", "trained", "report.html", "evaluation", "collected", "replay.json",
        }  # fmt: skip
        if strays:
            wrong.append(f"wrote {sorted(strays)}")
        return case, wrong


def run_command(command: Sequence[str], *, seconds: float = SECONDS) -> str:
    """Run a command in a child forked from this process; return what is wrong, empty if nothing is."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(command, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    deadline_s = time.monotonic() + seconds
    peak_bytes, status, output = 0, None, bytearray()
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while status is None:
            peak_bytes = max(peak_bytes, _peak_of(child))
            done, code = os.waitpid(child, os.WNOHANG)
            part = stream.read(_PART_BYTES)  # a full pipe would stop the child
            output += part or b""
            late = time.monotonic() > deadline_s
            if done:
                status = code
            elif late or len(output) > MOST_OUTPUT_BYTES:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                much = f"writes more than {MOST_OUTPUT_BYTES >> 20} MiB"
                return f"takes more than {seconds:.0f} s" if late else much
            elif not part:
                time.sleep(0.005)
        output += stream.read() or b""
    told = output.decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"ended by signal {-code}"
    if code not in CODES:
        return f"exit code {code}: {told[-3000:]}"
    if peak_bytes > MOST_BYTES:
        return f"took {peak_bytes / 2**20:.0f} MiB"
    if "\x1b" in told or "\u202e" in told:
        return f"wrote control characters: {told[-300:]!r}"
    return ""


def _peak_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        return next(
            int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")
        )
    except (OSError, StopIteration, ValueError):
        return 0


def _in_child(command: Sequence[str], writer: int) -> None:
    code = 1
    try:
        os.setsid()
        room = _address_space() + _ADDRESS_SPACE_SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace")
        code = _run(command)
    except BaseException:  # noqa: BLE001  (the process boundary)
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(command: Sequence[str]) -> int:
    from llmperf.cli.main import app  # noqa: PLC0415
    from llmperf.exits import run_guarded  # noqa: PLC0415

    try:
        run_guarded(lambda: app(list(command), prog_name="llmperf"))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(kw_only=True)
class Result:
    """What a campaign saw."""

    num_cases: int = 0
    num_commands: int = 0
    what: Counter[str] = field(default_factory=Counter)
    findings: dict[int, tuple[tuple[str, ...], list[str]]] = field(default_factory=dict)


def campaign(
    world: World, *, seed: int, numbers: Sequence[int], seconds: float, tell: bool = False
) -> Result:
    """Run mutants until all are done or time is up."""
    _warm_up()
    _limit_this_process()
    result = Result()
    end_s = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end_s:
            break
        case, wrong = run_case(world, seed=seed, number=number)
        assert case is not None
        result.num_cases += 1
        if tell and result.num_cases % 50 == 0:
            print(f"... {result.num_cases} to {number}", flush=True)
        result.num_commands += len(case.commands)
        result.what.update(one.split()[0] for one in case.what)
        if wrong:
            result.findings[number] = (case.what, wrong)
            if tell:
                print(f"--- {number} {case.what}", *wrong, sep="\n", flush=True)
    return result


_IMPORTED = (
    "lightgbm", "pandas", "pyarrow.dataset", "rich.table", "llmperf.api", "llmperf.cli.main", "llmperf.cli.progress",
    "llmperf.cli.status_screen", "llmperf.html_report.writer", "llmperf.prediction.model", "llmperf.prediction.record",
    "llmperf.run_state", "llmperf_common.store.upkeep.merge", "llmperf_common.store.tables.stats", "llmperf_common.store.upkeep.verify",
    "trainer.baselines.gbdt", "trainer.evaluation.evaluate", "trainer.life.train", "trainer.prediction.calibrate",
    "trainer.prediction.predict", "workers.collect.collect", "workers.corpus.stats",
)  # fmt: skip
"""Modules that import nearly all that the commands import: a command takes 0.1 s of processor time instead of 0.5 s."""


def _warm_up() -> None:
    """Import what commands import, once: children are forked from here. Nothing that starts threads is run."""
    for name in _IMPORTED:
        importlib.import_module(name)
    threads = [(one / "comm").read_text().strip() for one in Path("/proc/self/task").iterdir()]
    others = [name for name in threads if name != "jemalloc_bg_thd"]  # Arrow's, which forks well
    assert len(others) == 1, f"a process with threads must not fork: {others}"


def _limit_this_process() -> None:
    """Let a mutation that takes too much end the campaign, not the machine. Children have a limit of their own."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(
        resource.RLIMIT_AS, (_address_space() + 2 * _ADDRESS_SPACE_SPARE_BYTES, most)
    )


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.folders", description=__doc__)
    parser.add_argument("--number", type=int, default=2000, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument(
        "--world", type=Path, default=None, help="keep the sound folders here, and take them again"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-world-") as folder:
        place = given.world or Path(folder)
        world = World(folder=place) if (place / "runs").exists() else _made_in_child(place)
        numbers = range(given.first, given.first + given.number)
        result = campaign(world, seed=given.seed, numbers=numbers, seconds=given.seconds, tell=True)
    print(f"{result.num_cases} folders, {result.num_commands} commands, seed {given.seed}")
    for name, number in result.what.most_common():
        print(f"  {name:16} {number:6}")
    print(f"findings: {len(result.findings)}: {sorted(result.findings)}")
    return 1 if result.findings else 0


def _made_in_child(place: Path) -> World:
    """Make the world in another process: training starts threads, and who has threads must not fork."""
    place.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            make_world(place)
            os._exit(0)
        except BaseException:  # noqa: BLE001  (the process boundary)
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the sound folders could not be made"
    return World(folder=place)


if __name__ == "__main__":
    sys.exit(main())

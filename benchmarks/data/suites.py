"""How many kernels of SHOC and Rodinia run, write and do not return at once, on the CPU device.

``python benchmarks/data/suites.py --shoc GIT --rodinia GIT --work FOLDER --out FILE.csv`` builds
both corpora from git directories (of github.com/vetter/shoc and github.com/yuhc/gpu-rodinia),
collects a few samples of each kernel, judges every kernel and writes a row for each. Third-party
code stays in ``--work``.

A kernel that has an ok sample is judged in two ways:

* It *writes output* if the payload check of one of its samples says so (``checks.writes_output``: a
  launch changes bytes that were filled with a fixed value before).
* It *stays* if, in one of its three smallest ok launch configs, at least half of the work-items
  make two or more accesses through pointer arguments (one access if the kernel's text has only
  one). A work-item that returns at a guard on sizes makes no access; a work-item that returns at a
  guard on a value makes one. The instrumented kernel of the memory analysis counts the accesses,
  with the config's NDRange, scalars and limits of contents.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from llmperf_common.records import Argument, ArgumentKind, Kernel
from llmperf_common.store.tables.reader import open_dataset
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.rewriter import UnresolvedError
from workers.analysis.opening import open_prober
from workers.corpus.parquet import read_corpus
from workers.device.interface import DeviceFailure, DeviceRef, Instrumented, ProbeLaunch
from workers.discovery.find import NoDevice, choose

SETTINGS = (
    "plan.max_launch_bytes=67108864",
    "plan.max_work_items=262144",
    "plan.local_sizes=few",
    "timing.warmups=1",
    "timing.min_readings=1",
    "timing.max_readings=2",
    "timing.cold_readings=0",
    "limits.analysis_timeout_s=240",
    "limits.config_timeout_s=90",
)
"""Small launches and few readings: times do not matter here. Limits suit a loaded machine."""
FEWEST_STAYING = 0.5
_CONFIGS_JUDGED = 3
_MOST_WORK_ITEMS = 2**17
_MOST_TURNS = 2**24
_JUDGE_TIMEOUT_S = 240.0
_IMAGES = ("image", "sampler")
_COUNTING = (
    (
        "atom_max(&row[1], low);\n    c->trace += lp_mixed(address);",
        "atom_max(&row[1], low);\n    c->trace += 1ul;",
    ),
    ("size = c->mask[k];\n    c->trace += lp_mixed(address);", "size = c->mask[k];"),
    ("c->trace += v ^ (v >> 29);\n        return", "c->trace += 1ul;\n        return"),
    ("c->trace += v ^ (v >> 29);\n    if (index < length)", "if (index < length)"),
    ("atom_add(&c->table[2], c->trace);", "atom_add(&c->table[2], (ulong)(c->trace >= %dul));"),
)
"""Replacements by which an instrumented kernel counts work-items with enough accesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one kernel; one row of the CSV."""

    suite: str
    path: str
    kernel: str
    has_images: bool
    code: str
    ok: int
    failures: str
    writes_output: bool | None
    staying_share: float | None
    roles: str
    detail: str

    @property
    def runs(self) -> bool:
        """Whether the kernel has an ok sample."""
        return self.ok > 0

    @property
    def works(self) -> bool:
        """Whether the kernel writes output and its work-items do not return at once."""
        return bool(self.writes_output) and (self.staying_share or 0.0) >= FEWEST_STAYING


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shoc", type=Path, required=True, help="git directory, or a folder")
    parser.add_argument("--rodinia", type=Path, required=True, help="git directory, or a folder")
    parser.add_argument("--work", type=Path, required=True, help="folder of corpora and datasets")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("--samples", type=int, default=6, help="launch configs of each kernel")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    ref = choose(arguments.device)
    if isinstance(ref, NoDevice):
        print(ref.message(), file=sys.stderr)
        return 3
    verdicts: list[Verdict] = []
    for suite in ("shoc", "rodinia"):
        corpus, dataset = arguments.work / f"{suite}.parquet", arguments.work / suite
        source = getattr(arguments, suite)
        _llmperf("corpus", "build", str(source), "--suite", suite, "--out", str(corpus))
        _llmperf(*_collect(corpus, dataset, arguments.device, arguments.samples))
        verdicts += judged(corpus, dataset, ref)
    _write(arguments.out, verdicts)
    for line in summary(verdicts):
        print(line)
    return 0


def _collect(corpus: Path, dataset: Path, device: str, samples: int) -> list[str]:
    words = ["collect", "--corpus", str(corpus), "--out", str(dataset), "--device", device]
    words += ["--samples-per-kernel", str(samples), "--strategy", "memory_analysis,decoupled"]
    return words + [word for setting in SETTINGS for word in ("--set", setting)]


def _llmperf(*words: str) -> None:
    start = "from llmperf.cli.main import run; run()"
    subprocess.run([sys.executable, "-c", start, *words], check=True)


def judged(corpus: Path, dataset: Path, ref: DeviceRef) -> list[Verdict]:
    """Return the verdict of every kernel of a corpus, from the dataset collected from it."""
    rows = defaultdict(list)
    for row in open_dataset(dataset).samples().to_pylist():
        rows[row["kernel_id"]].append(row)
    roles = {row["kernel_id"]: row["index_roles"] or [] for row in _kernel_rows(dataset)}
    kernels = read_corpus(corpus).kernels
    shares = staying_shares([(one, rows[one.kernel_id]) for one in kernels], ref)
    return [
        _verdict(one, rows[one.kernel_id], roles.get(one.kernel_id, []), share)
        for one, share in zip(kernels, shares, strict=True)
    ]


def _kernel_rows(dataset: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_dataset(dataset).kernels().to_pylist()
    return rows


def _verdict(
    kernel: Kernel,
    rows: Sequence[Mapping[str, Any]],
    roles: Sequence[Mapping[str, Any]],
    share: float | None,
) -> Verdict:
    statuses = Counter(row["status"] for row in rows)
    num_ok = statuses.pop("ok", 0)
    failure = kernel.failure
    codes = [code for code, _ in statuses.most_common()] or [failure.code.value if failure else ""]
    details = [row["failure_detail"] for row in rows if row["failure_detail"]]
    detail = " ".join((details or [failure.detail if failure else ""])[0].split())
    writes = [row["checks"]["writes_output"] for row in rows if row["checks"]]
    known = [one for one in writes if one is not None]
    names = [one.name for one in kernel.signature.arguments] if kernel.signature else []
    return Verdict(
        suite=kernel.suite,
        path=kernel.path,
        kernel=kernel.name,
        has_images=any(word in detail for word in _IMAGES) and not num_ok,
        code="ok" if num_ok else codes[0],
        ok=num_ok,
        failures=" ".join(f"{code}:{count}" for code, count in sorted(statuses.items())),
        writes_output=any(known) if known else None,
        staying_share=share,
        roles=" ".join(f"{names[role['position']]}:{role['rule']}" for role in roles),
        detail=detail[:200],
    )


# -- what share of the work-items stays ------------------------------------------------------------


def staying_shares(
    measured: Sequence[tuple[Kernel, Sequence[Mapping[str, Any]]]], ref: DeviceRef
) -> Iterator[float | None]:
    """Yield for each kernel the largest share over its smallest ok configs; None if not countable.

    A child process counts, because a kernel may crash the compiler.
    """
    pool = _pool()
    for kernel, rows in measured:
        done = [row for row in rows if row["status"] == "ok" and prod(row["global_size"]) <= _MOST_WORK_ITEMS]  # fmt: skip
        done.sort(key=lambda row: prod(row["global_size"]))
        if not done:
            yield None
            continue
        try:
            yield pool.submit(_staying, kernel, done[:_CONFIGS_JUDGED], ref).result(
                _JUDGE_TIMEOUT_S
            )
        except (BrokenExecutor, TimeoutError):
            for process in multiprocessing.active_children():
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            pool = _pool()
            yield None
    pool.shutdown()


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _staying(kernel: Kernel, rows: Sequence[Mapping[str, Any]], ref: DeviceRef) -> float | None:
    assert kernel.signature is not None, "it has run"
    try:
        plain = instrument(kernel.source, kernel.name, kernel.build_options)
        prober = open_prober(ref)
        launches = [_launch(row, kernel.signature.arguments) for row in rows]
        records = prober.run(kernel, counting(plain, min(2, len(plain.sites))), launches)
        prober.close()
    except (UnresolvedError, DeviceFailure):
        return None
    shares = [
        record.trace / prod(launch.global_size)
        for launch, record in zip(launches, records, strict=True)
        if record is not None
    ]
    return max(shares, default=None)


def counting(instrumented: Instrumented, fewest: int) -> Instrumented:
    """Return the kernel, changed so that it counts work-items with ``fewest`` or more accesses."""
    source = instrumented.source
    for old, new in _COUNTING:
        assert source.count(old) == 1, f"hooks.cl has changed: {old}"
        source = source.replace(old, new % fewest if "%" in new else new)
    return replace(instrumented, source=source)


def _launch(row: Mapping[str, Any], arguments: Sequence[Argument]) -> ProbeLaunch:
    by_position = {one.position: one for one in arguments}
    scalars: dict[int, int | float] = {}
    limits: dict[int, int] = {}
    for given in row["args"]:
        argument = by_position[given["position"]]
        if argument.kind is ArgumentKind.SCALAR and given["value"] is not None:
            value = given["value"]
            is_float = argument.scalar_type in {"half", "float", "double"}
            scalars[argument.position] = value if is_float else int(value)
        elif given["contents_limit"]:
            limits[argument.position] = given["contents_limit"]
    return ProbeLaunch(
        global_size=tuple(row["global_size"]),
        local_size=tuple(row["local_size"]),
        scalars=scalars,
        seed=row["seed"],
        limits=limits,
        max_turns=_MOST_TURNS,
    )


# -- output ----------------------------------------------------------------------------------------


def summary(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the counts of kernels that run, write and stay, and the names of those that do not."""
    wanted = [one for one in verdicts if not one.has_images]
    for suite in ("shoc", "rodinia", ""):
        asked = [one for one in wanted if one.suite == suite or not suite]
        ran = [one for one in asked if one.runs]
        works = [one for one in ran if one.works]
        yield (
            f"{suite or 'both'}: {len(asked)} kernels without images; {len(ran)} with an ok sample"
            f" ({_percent(ran, asked)}); {len(works)} of them write and stay ({_percent(works, ran)})"
        )
    for code in sorted({one.code for one in wanted if not one.runs}):
        yield f"{code}: {_names(one for one in wanted if one.code == code)}"
    idle = [one for one in wanted if one.runs and not one.works]
    yield f"silent: {_names(one for one in idle if not one.writes_output)}"
    yield f"leaves at once, or not counted: {_names(one for one in idle if one.writes_output)}"


def _percent(part: Sequence[Verdict], whole: Sequence[Verdict]) -> str:
    return f"{100 * len(part) / max(1, len(whole)):.1f} %"


def _names(verdicts: Iterable[Verdict]) -> str:
    return ", ".join(f"{Path(one.path).name}:{one.kernel}" for one in verdicts) or "none"


def _write(path: Path, verdicts: Sequence[Verdict]) -> None:
    columns = list(Verdict.__dataclass_fields__)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        for one in verdicts:
            values = [getattr(one, name) for name in columns]
            writer.writerow(
                ["" if v is None else f"{v:.3f}" if isinstance(v, float) else v for v in values]
            )


if __name__ == "__main__":
    sys.exit(main())

"""Alternating runs of LLMPerf and of a plain loop on equal launch configs: do their times differ?

``python -m benchmarks.collecting.runs_in_turns CORPUS --device cuda:0 --preset 400k
--order "ours plain plain ours" --out FOLDER``

``CORPUS`` is a corpus of kernels that run (``benchmarks.collecting.collectors`` writes one,
``kept.parquet``). The kinds of runs:

* ``ours``: ``llmperf collect``. The first run must be of this kind or of one of the next two.
* ``ours+KEY=VALUE``: ``llmperf collect`` with that setting.
* ``unbound``: ``llmperf collect`` with ``timing.one_processor=false``.
* ``plain``: the plain loop of ``benchmarks.collecting.collectors``, part (c), over the launch
  configs of the first run.
* ``plain-bound``: the plain loop, launching from one processor.
* ``plain-config``: the plain loop, which allocates and frees its buffers for each config.
* ``plain-cleared``: like ``plain-config``, and waits after each config until the driver has cleared
  the freed buffers.
* ``plain-shuffled``, ``plain-bound-shuffled``: kernels and configs in a different order in each
  run.

All runs share one CUDA cache, so that only the first run compiles. With ``--cold`` each run of
``llmperf collect`` has a new cache and compiles beside its launches, as a first run does. The
program writes ``medians.csv``, with a column for each run, for ``python -m
benchmarks.collecting.run_offsets FOLDER/medians.csv --by-kind``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.collecting.collectors.log import read_log
from benchmarks.collecting.collectors.ours import Collect, Collected, read_collected
from benchmarks.collecting.collectors.plain_buffers import BUFFER_RULES
from benchmarks.collecting.collectors.plain_loop import BOUND_VARIABLE, BUFFERS_VARIABLE
from benchmarks.collecting.collectors.slicing import shuffled, work_of
from benchmarks.collecting.collectors.supervise import run_until_done
from benchmarks.collecting.run_offsets import write_medians
from llmperf_common.failures import OK_STATUS
from workers.corpus.parquet import read_corpus
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose

_PLAIN = (
    "plain",
    "plain-bound",
    "plain-config",
    "plain-cleared",
    "plain-shuffled",
    "plain-bound-shuffled",
)
_WITH = "ours+"
KINDS = ("ours", f"{_WITH}KEY=VALUE", "unbound", *_PLAIN)
_SILENCE_S = 60.0

Medians = dict[str, float]


def collect(
    kind: str, given: argparse.Namespace, out: Path, environment: Mapping[str, str]
) -> Collected:
    """Run ``llmperf collect`` once."""
    options = ["--preset", given.preset, *(f"--set={one}" for one in given.set)]
    if kind == "unbound":
        options.append("--set=timing.one_processor=false")
    if kind.startswith(_WITH):
        options.append(f"--set={kind.removeprefix(_WITH)}")
    command = Collect(
        corpus=given.corpus,
        out=out,
        device=given.device,
        max_s=given.max_seconds,
        options=tuple(options),
    )
    code, _ = command.run(environment)
    if code:
        raise SystemExit(f"{out}: exit code {code}; {out}.txt tells why")
    return read_collected(out)


def variables_of(kind: str) -> dict[str, str]:
    """Return the environment variables of one kind of the plain loop."""
    whose = next((one for one in BUFFER_RULES if kind == f"plain-{one}"), BUFFER_RULES[0])
    return {BOUND_VARIABLE: str(int("bound" in kind)), BUFFERS_VARIABLE: whose}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collecting.runs_in_turns", description=__doc__
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--order", default="ours plain plain ours", help=" ".join(KINDS))
    parser.add_argument(
        "--cold", action="store_true", help="llmperf collect compiles in each of its runs"
    )
    parser.add_argument("--max-seconds", type=float, default=120.0, help="time limit of one run")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    given = parser.parse_args()
    order = given.order.split()
    unknown = {kind for kind in order if not kind.startswith(_WITH)} - set(KINDS)
    if not order or order[0] in _PLAIN or unknown:
        parser.error(f"--order {given.order!r}: kinds are {', '.join(KINDS)}, ours before plain")
    ref = choose(given.device)
    if isinstance(ref, NoDevice):
        parser.error(ref.message())
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        parser.error(f"--out {given.out}: not empty")
    for runs, kernels in run_all(order, given, ref):
        write_medians(given.out / "medians.csv", runs, kernels)


def run_all(
    order: list[str], given: argparse.Namespace, ref: DeviceRef
) -> Iterator[tuple[dict[str, Medians], dict[str, str]]]:
    """Do all runs; after each run yield all medians so far, in ns, and each sample's kernel."""
    environment = {
        **os.environ,
        **ref.environment,
        "PYOPENCL_NO_CACHE": "1",
        "CUDA_CACHE_PATH": str(given.out / "cuda-cache"),
        "CUDA_CACHE_MAXSIZE": str(2**32),
    }
    runs: dict[str, Medians] = {}
    kernels: dict[str, str] = {}
    work = None
    for number, kind in enumerate(order):
        name, began_s = f"{number:02}_{kind}", time.monotonic()
        folder = given.out / name
        if kind in _PLAIN:
            assert work is not None, "ours comes first"
            folder.mkdir()
            part = run_until_done(
                "benchmarks.collecting.collectors.plain_loop",
                shuffled(work, seed=number) if "shuffled" in kind else work,
                folder,
                environment={**environment, **variables_of(kind)},
                max_s=given.max_seconds,
                silence_s=_SILENCE_S,
            )
            if part.problem:
                raise SystemExit(f"{name}: {part.problem}")
            rows = [row for row in read_log(folder / "log.jsonl") if row.get("status") == OK_STATUS]
        else:
            cache = f"cuda-cache-{number:02}" if given.cold else "cuda-cache"
            own = {**environment, "CUDA_CACHE_PATH": str(given.out / cache)}
            collected = collect(kind, given, folder, own)
            rows = [dict(row) for row in collected.rows if row["status"] == OK_STATUS]
            kernels.update({row["sample_id"]: row["kernel_id"] for row in rows})
            if work is None:
                corpus = read_corpus(given.corpus)
                work = work_of(corpus, collected.dataset, collected.rows, dataclasses.asdict(ref))
        runs[name] = {row["sample_id"]: row["median_ns"] for row in rows}
        print(f"{name}: {len(rows)} ok, {time.monotonic() - began_s:.0f} s", flush=True)
        yield runs, kernels


if __name__ == "__main__":
    main()

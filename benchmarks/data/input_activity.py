"""How many kernels of a corpus do nothing, or almost nothing, on usual and on planned inputs.

``python -m benchmarks.data.input_activity CORPUS --out FILE.jsonl [--kernels 200] [--seed 0]
[--configs 8] [--children 1]``

``--kernels`` random kernels that can be launched are analysed and planned for an H200 by three
rules. Virtual launches on a CPU device count their work; nothing is timed. The rules are ``usual``
(memory analysis with the usual values, ``plan.plain_share`` 1), ``planned`` (the default), and
``three`` (the three strategies of the preset 400k). FILE gets a line for each kernel, and a second
call adds the kernels that FILE lacks.

The program prints shares for each rule, over the kernels that every rule could count. They are the
shares of kernels that are active, have few active items or do nothing
(``llmperf_common/features/activity.py``), and of kernels in whose median launch more than nine
tenths of the work-items make no store.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llmperf_common.features.activity import FEW_SHARE, activity_of_kernel
from llmperf_common.features.work import Work
from llmperf_common.records import DeviceClass, Kernel, LaunchConfig, Strategy
from workers.config import PlanConfig
from workers.corpus.read import read_corpus
from workers.discovery.find import NoDevice, choose
from workers.execution.analyse_ahead import analyse_corpus
from workers.plan.launch_plan import plan_configs
from workers.work.children import CountedKernel, count_all

_AT_ONCE = 10
_TIMEOUT_S = 600.0
"""Limit that is long enough for a busy machine, so that the counts do not depend on the load."""
H200 = DeviceClass(
    name="h200",
    compute_units=132,
    max_work_group_size=1024,
    max_work_item_sizes=(1024, 1024, 64),
    max_allocation_bytes=35 * 2**30,
    global_memory_bytes=140 * 2**30,
    local_memory_bytes=48 * 1024,
    max_constant_buffer_bytes=64 * 1024,
)
_MEMORY_ANALYSIS = (Strategy.MEMORY_ANALYSIS,)
_RULES = ("usual", "planned", "three")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--configs", type=int, default=8, help="launch configs of each kernel by each rule"
    )
    parser.add_argument("--children", type=int, default=1)
    given = parser.parse_args()
    ref = choose("cpu")
    if isinstance(ref, NoDevice):
        sys.stderr.write(ref.message() + "\n")
        return 4
    corpus = read_corpus(given.corpus)
    possible = sorted(
        (one for one in corpus.kernels if one.failure is None), key=lambda one: one.kernel_id
    )
    random.Random(given.seed).shuffle(possible)  # noqa: S311  (a sample, no secret)
    wanted = possible[: given.kernels]
    known = {row["kernel_id"] for row in _rows(given.out)}
    missing = [one for one in wanted if one.kernel_id not in known]
    for start in range(0, len(missing), _AT_ONCE):
        some = replace(corpus, kernels=tuple(missing[start : start + _AT_ONCE]))
        analysed = analyse_corpus(some, ref, num_children=given.children, timeout_s=_TIMEOUT_S)
        jobs = ((one, _configs(one, given.configs)) for one in analysed.kernels)
        counted = count_all(jobs, ref, num_children=given.children, timeout_s=_TIMEOUT_S)
        with given.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_row(one, given.configs)) + "\n" for one in counted)
        sys.stderr.write(f"{start + len(some.kernels)} of {len(missing)} kernels\n")
    names = {one.kernel_id for one in wanted}
    sys.stdout.write(_table([row for row in _rows(given.out) if row["kernel_id"] in names]))
    return 0


def _plans(number: int) -> dict[str, PlanConfig]:
    return {
        "usual": PlanConfig(
            samples_per_kernel=number, strategies=_MEMORY_ANALYSIS, plain_share=1.0
        ),
        "planned": PlanConfig(samples_per_kernel=number, strategies=_MEMORY_ANALYSIS),
        "three": PlanConfig(samples_per_kernel=number, strategies=tuple(Strategy)),
    }


def _by_rule(kernel: Kernel, number: int) -> dict[str, tuple[LaunchConfig, ...]]:
    return {
        name: plan_configs(kernel, H200, config, kernel.analysis)
        for name, config in _plans(number).items()
    }


def _configs(kernel: Kernel, number: int) -> list[LaunchConfig]:
    """Return the launch configs of all rules without duplicates."""
    found = {one.sample_id: one for some in _by_rule(kernel, number).values() for one in some}
    return list(found.values())


def _row(counted: CountedKernel, number: int) -> dict[str, Any]:
    kernel = counted.kernel
    outcomes = {
        config.sample_id: outcome
        for config, outcome in zip(counted.configs, counted.outcomes, strict=True)
    }
    row: dict[str, Any] = {"kernel_id": kernel.kernel_id, "name": kernel.name}
    inputs = kernel.analysis.inputs if kernel.analysis else None
    row["inputs"] = asdict(inputs) if inputs else None
    for name, configs in _by_rule(kernel, number).items():
        works = [
            (math.prod(one.global_size), outcome, None)
            for one in configs
            if isinstance(outcome := outcomes[one.sample_id], Work)
        ]
        activity = activity_of_kernel(works)
        row[name] = {
            "strategies": sorted({one.strategies[0].value for one in configs}),
            "activity": activity.value if activity else None,
            "shares": [work.active_items / items for items, work, _ in works],
        }
    return row


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _table(rows: list[dict[str, Any]]) -> str:
    """Return the shares of each rule over the kernels that all rules could count."""
    kept = [row for row in rows if all(row[name]["activity"] for name in _RULES)]
    lines = [f"{len(rows)} kernels, {len(kept)} counted by every rule"]
    for name in _RULES:
        counts = Counter(row[name]["activity"] for row in kept)
        counts["over nine tenths idle"] = sum(
            statistics.median(row[name]["shares"]) < FEW_SHARE for row in kept
        )
        shares = ", ".join(
            f"{what} {num} ({num / max(1, len(kept)):.1%})" for what, num in sorted(counts.items())
        )
        lines.append(f"{name}: {shares}")
    chosen = [row for row in rows if row["inputs"] and row["inputs"]["num_tried"]]
    changed = sum(bool(row["inputs"]["scalars"] or row["inputs"]["contents"]) for row in chosen)
    lines.append(f"candidates tried of {len(chosen)} kernels, inputs chosen for {changed}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

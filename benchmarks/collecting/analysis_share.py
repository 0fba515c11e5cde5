"""How many buffers of a corpus the memory analysis explains, and why it does not explain others.

``python -m benchmarks.collecting.analysis_share CORPUS.parquet --kernels 1500 --seed 0 --out
FILE.csv``

The program draws ``--kernels`` random kernels of CORPUS that can run and have a pointer argument.
It draws from the kernels that ``llmperf corpus build SRC… --analyse`` has analysed. With
``--analyse`` it draws from all kernels, and analyses those drawn on the CPU device. FILE gets one
row for each buffer, without any source.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from llmperf_common.analysis import Analysis, Extent
from llmperf_common.records import Kernel
from workers.corpus.parquet import Corpus, read_corpus
from workers.discovery.find import NoDevice, choose
from workers.execution.analyse_ahead import analyse_corpus

_COLUMNS = ("kernel_id", "position", "data_dependent", "kind", "reason")
_REASON_CHARACTERS = 120


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--kernels", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--analyse", action="store_true", help="draw from all kernels, and analyse those drawn"
    )
    arguments = parser.parse_args()
    kernels: Sequence[Kernel] = read_corpus(arguments.corpus).kernels
    if arguments.analyse:
        kernels = _analysed(kernels, arguments.kernels, arguments.seed)
    chosen = _chosen(kernels, arguments.kernels, arguments.seed)
    rows = [row for kernel, analysis in chosen for row in _rows(kernel, analysis)]
    with arguments.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    sys.stdout.write(_summary(chosen, rows))
    return 0


def _analysed(kernels: Sequence[Kernel], count: int, seed: int) -> Sequence[Kernel]:
    usable = [
        one
        for one in kernels
        if one.failure is None
        and one.signature is not None
        and any(argument.kind.is_buffer for argument in one.signature.arguments)
    ]
    drawn = random.Random(seed).sample(usable, min(count, len(usable)))  # noqa: S311  (no secret)
    ref = choose("cpu")
    if isinstance(ref, NoDevice):
        sys.exit(ref.message())
    fresh = tuple(replace(one, analysis=None) for one in drawn)
    return analyse_corpus(Corpus(kernels=fresh, sha256=""), ref).kernels


def _chosen(kernels: Sequence[Kernel], count: int, seed: int) -> list[tuple[Kernel, Analysis]]:
    usable = [
        (one, one.analysis)
        for one in kernels
        if one.failure is None and one.analysis is not None and one.analysis.extents
    ]
    random.Random(seed).shuffle(usable)  # noqa: S311  (no secret)
    return usable[:count]


def _rows(kernel: Kernel, analysis: Analysis) -> Iterator[dict[str, object]]:
    for extent in analysis.extents:
        yield {
            "kernel_id": kernel.kernel_id,
            "position": extent.position,
            "data_dependent": bool(analysis.data_dependent),
            "kind": _kind(extent, analysis),
            "reason": _why(extent),
        }


def _kind(extent: Extent, analysis: Analysis) -> str:
    if analysis.failure:
        return "not_analysed"
    if extent.form is None:
        return "no_form"
    return "validated" if extent.validated else "bound"


def _why(extent: Extent) -> str:
    """Return the reason without the place in the source, because the place quotes the source."""
    for mark in ("; furthest at", " (line", ": /", "\n"):
        extent_reason, _, _ = extent.reason.partition(mark)
        if extent_reason != extent.reason:
            return extent_reason[:_REASON_CHARACTERS]
    return extent.reason[:_REASON_CHARACTERS]


def _summary(chosen: Sequence[tuple[Kernel, Analysis]], rows: Sequence[dict[str, object]]) -> str:
    lines = [f"{len(chosen)} kernels, {len(rows)} buffers"]
    for is_dependent in (False, True):
        kinds = Counter(str(row["kind"]) for row in rows if row["data_dependent"] is is_dependent)
        total = sum(kinds.values())
        shares = ", ".join(f"{kind} {n} ({n / total:.1%})" for kind, n in kinds.most_common())
        name = "data-dependent" if is_dependent else "not data-dependent"
        lines.append(f"{name}: {total} buffers: {shares}")
    reasons = Counter(
        str(row["reason"])[:60]
        for row in rows
        if row["kind"] != "validated" and row["data_dependent"] is False
    )
    lines += [f"  {count:5} {reason}" for reason, count in reasons.most_common(15)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.oracle``: check the extents of kernels/ with Oclgrind; exits 1 when one is wrong.

The extents of the side files; with ``--corpus FILE`` those of a corpus Parquet built with ``--analyse``:
what it calls validated must be exact, by Oclgrind and by the side files. ``--out FILE`` keeps one row a
pointer argument.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmperf_common.analysis import Analysis
from tests.oracle.extents import ExtentRule, Finding, Reach, check_kernel, of_analyses, of_side_file
from tests.oracle.oclgrind import PROGRAM, is_installed, version
from tests.support.truth.side_files import (
    Pair,
    SideKernel,
    Verdict,
    compare,
    random_launches,
    read_side_files,
)
from workers.corpus.parquet import read_corpus

_COMPARED_LAUNCHES = 300
_COLUMNS = (
    "kernel", "argument", "position", "extent_of", "oclgrind", "launches", "shortened_launches",
    "side_file", "validated", "detail",
)  # fmt: skip


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="a corpus Parquet with analyses")
    parser.add_argument("--kernels", default="", help="only these names, separated by commas")
    parser.add_argument("--launches", type=int, default=6, help="random launches a kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    arguments = parser.parse_args()
    if not is_installed():
        print(f"{PROGRAM} is not installed (Debian: apt-get install oclgrind)", file=sys.stderr)
        return 2
    wanted = set(filter(None, arguments.kernels.split(",")))
    kernels = [one for one in read_side_files() if not wanted or one.name in wanted]
    rule: ExtentRule = of_side_file
    pairs: dict[tuple[str, str], Pair] = {}
    if arguments.corpus is not None:
        analyses = _analyses(arguments.corpus)
        rule = of_analyses(analyses)
        pairs = _compared(kernels, analyses, arguments.seed)

    def check(kernel: SideKernel) -> list[Finding]:
        return check_kernel(kernel, rule, num_launches=arguments.launches, seed=arguments.seed)

    findings: list[Finding] = []
    with ThreadPoolExecutor(arguments.processes) as threads:
        for found in threads.map(check, kernels):
            findings += found
            _tell_wrong(found)
    if arguments.out is not None:
        _write(arguments.out, findings, pairs)
    num_wrong = _summarise(findings, arguments.launches) + _summarise_pairs(pairs.values())
    return 1 if num_wrong or not findings else 0


def _analyses(path: Path) -> dict[str, Analysis]:
    """Read the analyses of a corpus by kernel name; those of kernels/ are distinct."""
    kernels = read_corpus(path).kernels
    return {one.name: one.analysis for one in kernels if one.analysis is not None}


def _compared(
    kernels: Iterable[SideKernel], analyses: Mapping[str, Analysis], seed: int
) -> dict[tuple[str, str], Pair]:
    return {
        (pair.kernel, pair.argument): pair
        for kernel in kernels
        for pair in compare(
            kernel,
            analyses.get(kernel.name),
            random_launches(kernel, count=_COMPARED_LAUNCHES, seed=seed),
        )
    }


def _tell_wrong(findings: Iterable[Finding]) -> None:
    for one in findings:
        if one.reach in (Reach.TOO_SMALL, Reach.TOO_LARGE):
            print(f"{one.kernel}.{one.argument}: {one.reach}: {one.detail}", file=sys.stderr)


def _write(path: Path, findings: Sequence[Finding], pairs: Mapping[tuple[str, str], Pair]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for one in findings:
            pair = pairs.get((one.kernel, one.argument))
            writer.writerow(
                (
                    one.kernel,
                    one.argument,
                    one.position,
                    "side file" if pair is None else "analysis",
                    one.reach,
                    one.num_launches,
                    one.num_shortened,
                    "" if pair is None else pair.verdict,
                    "" if pair is None else pair.validated,
                    " ".join(one.detail.split()),
                )
            )


def _summarise(findings: Sequence[Finding], num_launches: int) -> int:
    count = Counter(one.reach for one in findings)
    claimed = [one for one in findings if one.reach is not Reach.NO_CLAIM]
    num_wrong = count[Reach.TOO_SMALL] + count[Reach.TOO_LARGE]
    print(
        f"{version()}: {len(findings)} pairs of {len({one.kernel for one in findings})} kernels:"
        f" exact {count[Reach.EXACT]}, wrong {num_wrong}, no claim {count[Reach.NO_CLAIM]};"
        f" kernels covered {len({one.kernel for one in claimed})}; {num_launches} launches a kernel;"
        f" never shortened {sum(one.num_shortened == 0 for one in claimed)}"
    )
    return num_wrong


def _summarise_pairs(pairs: Iterable[Pair]) -> int:
    """Say how an analysis stands against the side files; return the wrong ones it calls validated."""
    judged = [one for one in pairs if one.verdict is not Verdict.NO_FORM]
    if not judged:
        return 0
    for name, some in (
        ("all kernels", judged),
        ("not data-dependent", [one for one in judged if not one.data_dependent]),
    ):
        count = Counter(one.verdict for one in some)
        shares = ", ".join(
            f"{verdict} {count[verdict]} ({100 * count[verdict] / max(1, len(some)):.1f} %)"
            for verdict in Verdict
            if verdict is not Verdict.NO_FORM
        )
        print(f"against the side files, {name}: {len(some)} pairs: {shares}")
    wrong = [one for one in judged if one.verdict is Verdict.WRONG]
    for one in wrong:
        words = "validated" if one.validated else "not validated"
        print(f"{one.kernel}.{one.argument}: wrong, {words}: {one.detail}", file=sys.stderr)
    return sum(one.validated for one in wrong)


if __name__ == "__main__":
    sys.exit(main())

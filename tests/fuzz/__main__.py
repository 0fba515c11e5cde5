"""The program: mutants by the thousand, a table of what they gave, exit code 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import Result, Rule, run
from tests.fuzz.instrument_child import command
from tests.fuzz.seeds import REPOSITORY, Seeds


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--sources", type=int, default=10_000, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument("--children", type=int, default=2, help="parsing processes at once")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds a source may take")
    parser.add_argument("--corpus", type=Path, default=REPOSITORY / ".corpus" / "github")
    parser.add_argument("--keep", type=Path, default=REPOSITORY / "runs" / "fuzz")
    parser.add_argument(
        "--instrument", action="store_true", help="instrument each kernel for memory analysis, too"
    )
    given = parser.parse_args()
    seeds = Seeds(corpus=given.corpus if given.corpus.is_dir() else None)
    rule = Rule(
        seed=given.seed,
        num_sources=given.sources,
        seconds=given.seconds,
        source_timeout_s=given.timeout,
        num_children=given.children,
        first=given.first,
        command=command() if given.instrument else None,
    )
    result = run(rule, seeds, given.keep)
    _tell(result, seeds)
    return 1 if result.findings or result.left_processes else 0


def _tell(result: Result, seeds: Seeds) -> None:
    own, corpus = seeds.num_files
    print(f"seeds: {own} kernels, {corpus} files of the corpus")
    print(
        f"{result.num_sources} sources in {result.seconds:.0f} s, slowest batch {result.slowest_batch_s:.1f} s"
    )
    for name, number in result.counts.most_common():
        print(f"  {name:28} {number:8}")
    print(f"processes left: {len(result.left_processes)} {result.left_processes or ''}")
    print(f"findings: {len(result.findings)}")
    for number, wrong in result.findings.items():
        print(f"  {number}: {wrong.strip().splitlines()[-1]}")


if __name__ == "__main__":
    sys.exit(main())

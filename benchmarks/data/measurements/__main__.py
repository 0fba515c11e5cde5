"""Publish a dataset's measurements without sources; rebuild the dataset from them and the corpus.

``python -m benchmarks.data.measurements export DATASET OUT``

``python -m benchmarks.data.measurements rebuild measurements/h200 --corpus github.tar.xz --corpus
shoc.tar.xz --corpus rodinia.tar.xz --out DIR``

``python -m benchmarks.data.measurements compare DATASET OTHER`` says in which columns two datasets
differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.data.measurements.comparing import differences
from benchmarks.data.measurements.exporting import export_tables
from benchmarks.data.measurements.rebuilding import rebuild
from llmperf.exits import leave
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.tables.reader import open_dataset
from workers.corpus.read import CorpusError


def main() -> int:
    """Run the command line; return 1 if a comparison finds a difference, 3 for bad input."""
    given = _parser().parse_args()
    try:
        if given.command == "export":
            index = export_tables(open_dataset(given.dataset), given.out, plan_seed=given.seed)
            print(f"{given.out}: {index['samples']:,} samples of {index['tasks']:,} tasks")
        elif given.command == "rebuild":
            report = rebuild(given.tables, given.corpus, given.out)
            print(f"{given.out}: {report.num_samples:,} samples of {report.num_tasks:,} tasks")
            for suite, number in sorted(report.missing.items()):
                print(f"{number:,} kernels of {suite} have no source: it is in no --corpus")
        else:
            found = list(differences(open_dataset(given.dataset), open_dataset(given.other)))
            print("\n".join(found) or "the same")
            return 1 if found else 0
    except (StoreError, CorpusError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write the tables of a dataset")
    export.add_argument("dataset", type=Path)
    export.add_argument("out", type=Path, help="a new folder")
    export.add_argument("--seed", type=int, default=0, help="plan.seed of the collection")
    again = commands.add_parser("rebuild", help="make the dataset again")
    again.add_argument("tables", type=Path)
    again.add_argument(
        "--corpus",
        type=Path,
        action="append",
        default=[],
        help="where sources are; may be repeated",
    )
    again.add_argument("--out", required=True, help="a new or empty folder")
    compare = commands.add_parser("compare", help="say in which columns two datasets differ")
    compare.add_argument("dataset", type=Path)
    compare.add_argument("other", type=Path)
    return parser


if __name__ == "__main__":
    leave(main())

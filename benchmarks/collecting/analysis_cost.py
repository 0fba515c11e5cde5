"""Processor time that the memory analysis of a kernel takes, the choice of inputs included.

``python -m benchmarks.collecting.analysis_cost CORPUS.parquet --kernels 300 --seed 0 --out
FILE.csv [--part 2/14]``

Random kernels of CORPUS with a signature are analysed by one child process, as ``llmperf collect``
does it. Each time a kernel is finished, the processor time of all child processes is read. FILE
gets for each kernel its id, the processor time since the kernel before it, in seconds, the number
of its buffers, how many of these have a validated extent, a hash of the whole analysis, and the
reason if there is no analysis. With ``--part 2/14`` every fourteenth of these kernels is analysed,
from the second on, so that fourteen processes at once share the work.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import random
import resource
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from llmperf_common.analysis import Analysis
from workers.corpus.parquet import Corpus, read_corpus
from workers.discovery.find import NoDevice, choose
from workers.execution.analyse_ahead import analyse_corpus


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--part", default="1/1", help="which share of the kernels, such as 2/14")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    usable = [
        replace(one, analysis=None)
        for one in read_corpus(arguments.corpus).kernels
        if one.failure is None and one.signature is not None
    ]
    draws = random.Random(arguments.seed)  # noqa: S311  (no secret)
    part, num_parts = map(int, arguments.part.split("/"))
    drawn = tuple(draws.sample(usable, min(arguments.kernels, len(usable))))[part - 1 :: num_parts]
    ref = choose("cpu")
    if isinstance(ref, NoDevice):
        sys.exit(ref.message())
    totals = [_used_s()]
    analysed = analyse_corpus(
        Corpus(kernels=drawn, sha256=""),
        ref,
        num_children=1,
        timeout_s=arguments.timeout_s,
        progress=lambda _done, _all: totals.append(_used_s()),
    )
    costs = [after - before for before, after in itertools.pairwise(totals)]
    with arguments.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["kernel", "cpu_s", "buffers", "validated", "analysis", "failure"])
        # One child finishes the kernels in their order.
        for kernel, cost in zip(analysed.kernels, costs, strict=True):
            writer.writerow([kernel.kernel_id[:12], f"{cost:.2f}", *_summary(kernel.analysis)])
    sys.stdout.write(
        f"{len(costs)} kernels: mean {statistics.mean(costs):.2f}, "
        f"median {statistics.median(costs):.2f} CPU-seconds\n"
    )
    return 0


def _summary(analysis: Analysis | None) -> tuple[int, int, str, str]:
    assert analysis is not None, "every kernel gets an analysis"
    text = repr(analysis).encode()
    num_validated = sum(one.validated for one in analysis.extents)
    return (
        len(analysis.extents),
        num_validated,
        hashlib.sha256(text).hexdigest()[:12],
        analysis.failure[:80],
    )


def _used_s() -> float:
    """Return the processor time of all child processes, of those that run and of those ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    sys.exit(main())

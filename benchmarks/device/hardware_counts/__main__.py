"""Compare counted work with the GPU's hardware counters, launch by launch.

* ``… choose DATASET --out JOBS.json [--kernels 330] [--configs 3] [--seed 0]`` draws launches of a
  dataset with sources;
* ``… count JOBS.json --out COUNTS.parquet`` counts their work on the CPU device, as ``llmperf
  collect`` does;
* ``… measure JOBS.json --out COUNTERS.csv`` launches each of them once under NVIDIA's ``ncu``
  (needs pycuda and a GPU, no libclang);
* ``… compare COUNTERS.csv COUNTS.parquet [--out ROWS.csv]`` prints how far counts and counters are
  apart, and writes the numbers of each launch.

(``…`` is ``python -m benchmarks.device.hardware_counts``.) ``ncu`` does not see OpenCL launches.
Therefore the PTX that OpenCL's compiler makes is loaded through the CUDA driver and launched there,
with equal inputs (``workers/device/cuda``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.device.hardware_counts.choosing import choose_launches, count_launches
from benchmarks.device.hardware_counts.comparing import compare
from benchmarks.device.hardware_counts.ncu import measure


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    chosen = verbs.add_parser("choose")
    chosen.add_argument("dataset", type=Path)
    chosen.add_argument("--kernels", type=int, default=330)
    chosen.add_argument("--configs", type=int, default=3, help="launches of each kernel")
    chosen.add_argument("--seed", type=int, default=0)
    counted = verbs.add_parser("count")
    measured = verbs.add_parser("measure")
    measured.add_argument("--max-time-s", type=float, default=540.0)
    for verb in (counted, measured):
        verb.add_argument("jobs", type=Path)
    compared = verbs.add_parser("compare")
    compared.add_argument("counters", type=Path)
    compared.add_argument("counts", type=Path)
    for verb in (chosen, counted, measured, compared):
        verb.add_argument("--out", type=Path, required=verb is not compared)
    given = parser.parse_args()
    if given.verb == "choose":
        print(choose_launches(given.dataset, given.out, given.kernels, given.configs, given.seed))
    elif given.verb == "count":
        print(count_launches(given.jobs, given.out))
    elif given.verb == "measure":
        print(measure(given.jobs, given.out, max_time_s=given.max_time_s))
    else:
        print(compare(given.counters, given.counts, given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

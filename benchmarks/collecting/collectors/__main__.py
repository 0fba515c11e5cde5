"""Compare the speed of LLMPerf with that of three other ways to collect the same samples.

``python -m benchmarks.collecting.collectors CORPUS.parquet --device cuda:0 --kernels 200 --seed 1
--out FOLDER``

Draws a random slice of CORPUS and collects it once to find the kernels that fault, hang or give no
ok sample. These kernels are counted and left out of all parts. The other kernels are timed in four
ways, one after the other:

* *ours*: ``llmperf collect``;
* *c*: a plain loop over the same launch configs;
* *b*: kernel_tuner on 4 random launch configs of each kernel;
* *a*: a fresh process for one launch config of each kernel.

``results.csv``, ``agreement.csv`` and ``medians.csv`` (for ``benchmarks.collecting.run_offsets
--by-kind``) are written again after each part. The same command continues where an earlier one
stopped; ``--parts`` limits it to some parts. ``rates.py`` explains the times, and ``slicing.py``
says which kernels are left out.

If kernels were not analysed before, the time of *ours* includes the memory analysis; the column
``analysed_before`` shows this. To exclude the analysis, use ``--slice-only``, then ``llmperf corpus
build FOLDER/slice.parquet --analyse --out SLICE.parquet`` on any CPU device, and then this command
on SLICE.parquet with ``--kernels 0`` and another FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.collecting.collectors.comparison import (
    PARTS,
    PLAIN_AGAIN,
    Comparison,
    Limits,
    Settings,
    draw_slice,
)
from benchmarks.collecting.collectors.tables import (
    agreement_rows,
    rates,
    summary,
    write_agreement,
    write_results,
    write_run_medians,
)
from llmperf_common.store.files.filesystem import StoreError
from workers.corpus.files import CorpusError
from workers.discovery.find import NoDevice, choose


def main() -> int:
    """Run the command line."""
    arguments = _parser().parse_args()
    parts = arguments.parts.split(",")
    if not set(parts) <= set(PARTS):
        print(f"--parts {arguments.parts}: of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    settings = _settings(arguments)
    try:
        if arguments.slice_only:
            draw_slice(settings, settings.out / "slice.parquet")
            return 0
        ref = choose(arguments.device)
        if isinstance(ref, NoDevice):
            print(ref.message(), file=sys.stderr)
            return 4
        _run(Comparison(settings, ref), parts)
    except (CorpusError, StoreError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def _run(comparison: Comparison, parts: list[str]) -> None:
    comparison.choose_kernels()
    # Ours and (c) alternate, so that a drift of the host does not look like a difference.
    order = ["ours", "c", "repeat", PLAIN_AGAIN, "b", "a"]
    wanted = {"ours", *parts}
    if comparison.settings.repeat:
        wanted |= {"repeat"} | ({PLAIN_AGAIN} if "c" in parts else set())
    for part in order:
        if part in wanted:
            _do(comparison, part)
    for line in summary(rates(comparison), agreement_rows(comparison), comparison):
        print(line)


def _do(comparison: Comparison, part: str) -> None:
    if part in ("ours", "repeat"):
        comparison.collect(part)
    else:
        comparison.run_part(part)
    _write(comparison)


def _write(comparison: Comparison) -> None:
    out = comparison.settings.out
    write_results(out / "results.csv", rates(comparison), comparison)
    write_agreement(out / "agreement.csv", agreement_rows(comparison))
    write_run_medians(out / "medians.csv", comparison)


def _settings(arguments: argparse.Namespace) -> Settings:
    options = [
        "--samples-per-kernel",
        str(arguments.samples_per_kernel),
        "--preset",
        arguments.preset,
    ]
    options += [word for setting in arguments.set for word in ("--set", setting)]
    return Settings(
        corpus=arguments.corpus,
        out=arguments.out,
        device=arguments.device,
        num_kernels=arguments.kernels,
        seed=arguments.seed,
        limits=Limits(
            ours_s=arguments.max_seconds_ours,
            a_s=arguments.max_seconds_a,
            b_s=arguments.max_seconds_b,
            c_s=arguments.max_seconds_c,
            each_a_s=arguments.timeout,
            silence_s=arguments.timeout,
        ),
        options=tuple(options),
        screen=not arguments.no_screen,
        repeat=arguments.repeat,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collecting.collectors", description=__doc__
    )
    limits = Limits()
    add = parser.add_argument
    add("corpus", type=Path, help="written by llmperf corpus build")
    add("--out", type=Path, required=True, metavar="FOLDER")
    add("--device", default="auto")
    add("--kernels", type=int, default=200, help="number of kernels to draw; 0: all that can run")
    add("--seed", type=int, default=1, help="seed of the draws of kernels and launch configs")
    add("--samples-per-kernel", type=int, default=68)
    add("--preset", default="default", help="preset of llmperf collect")
    add(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="setting of llmperf collect"
    )
    add("--slice-only", action="store_true", help="only write FOLDER/slice.parquet")
    add(
        "--parts",
        default=",".join(PARTS),
        help="parts to run, separated by commas; ours always runs",
    )
    add(
        "--repeat",
        action="store_true",
        help="run ours and (c) twice, to see the noise between runs",
    )
    add(
        "--no-screen",
        action="store_true",
        help="skip the first collection, which finds kernels that fault",
    )
    add(
        "--max-seconds-ours",
        type=float,
        default=limits.ours_s,
        help="time limit of each run of llmperf collect",
    )
    add("--max-seconds-a", type=float, default=limits.a_s)
    add("--max-seconds-b", type=float, default=limits.b_s)
    add("--max-seconds-c", type=float, default=limits.c_s)
    add(
        "--timeout",
        type=float,
        default=limits.silence_s,
        help="time limit of one launch config in (a), (b) or (c)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

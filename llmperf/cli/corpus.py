"""``llmperf corpus build|stats``."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmperf.cli.console import answer_json, answer_table, say
from llmperf.cli.paths import local_only
from llmperf.cli.shared_options import Command, Group
from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.corpus.parquet import Corpus

app = typer.Typer(
    cls=Group,
    help="Build a corpus of kernels from sources, and count its kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


_PROGRESS_INTERVAL_S = 30.0
_MAX_LINES = 20
"""Maximum number of lines for skipped files, and for each group of counts. (``stats --json`` shows
all counts.)"""


@app.command(cls=Command)
def build(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Files and folders of .cl sources, tar or zip archives, git directories, corpora.",
            metavar="SRC...",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The corpus to write, a .parquet file.",
            callback=local_only,
        ),
    ],
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help="Name of the suite (default: the folder's or the archive's name).",
        ),
    ] = None,
    analyse: Annotated[
        bool,
        typer.Option(
            "--analyse",
            help="Also analyse each kernel's memory accesses, so that `llmperf collect` can skip "
            "the analysis. If the command is interrupted, finished analyses stay beside --out.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="Device that --analyse uses (default: cpu)."),
    ] = None,
) -> None:
    """Read sources, find their kernels, signatures, features and families, and write a corpus."""
    from workers.corpus.read import read_sources, write_corpus  # noqa: PLC0415

    if device is not None and not analyse:
        raise CommandError(
            Exit.USAGE,
            "--device selects the device of --analyse: add --analyse, or leave out --device",
        )
    _check_out(out, sources)
    corpus = read_sources(sources, suite=suite)
    if analyse:
        corpus = _write_analysed(corpus, device or "cpu", out)
    else:
        write_corpus(out, corpus)
    failed = sum(kernel.failure is not None for kernel in corpus.kernels)
    say(
        f"{out}: {len(corpus.kernels):,} kernels ({failed:,} that cannot run), "
        f"sha256 {corpus.sha256[:20]}",
        is_result=True,
    )
    for path, reason in corpus.skipped[:_MAX_LINES]:
        say(f"skipped {path}: {reason}")
    if len(corpus.skipped) > _MAX_LINES:
        say(f"skipped {len(corpus.skipped) - _MAX_LINES:,} more")


def _check_out(out: Path, sources: Sequence[Path]) -> None:
    """Refuse to overwrite a source or a file that is not a corpus, before the work begins."""
    from workers.corpus.parquet import corpus_to_write  # noqa: PLC0415

    if out.resolve() in [source.resolve() for source in sources]:
        raise CommandError(
            Exit.USAGE, f"--out {out} is one of the sources: name another file to write"
        )
    corpus_to_write(out)


def _write_analysed(corpus: Corpus, device: str, out: Path) -> Corpus:
    """Analyse the kernels, write the corpus to ``out`` and return it."""
    from llmperf.collecting import device_ref  # noqa: PLC0415
    from llmperf.kept_analyses import KeptAnalyses  # noqa: PLC0415
    from workers.corpus.read import write_corpus  # noqa: PLC0415
    from workers.discovery.find import DeviceReport, try_runtimes_for  # noqa: PLC0415
    from workers.discovery.ownership import held_for_analysis  # noqa: PLC0415
    from workers.execution.analyse_ahead import analyse_corpus  # noqa: PLC0415

    said_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said_s
        if done == total or time.monotonic() - said_s > _PROGRESS_INTERVAL_S:
            said_s = time.monotonic()
            say(f"analysed {done:,} of {total:,} kernels")

    may_be_gpu = device == "auto" or device.startswith("cuda")
    report = try_runtimes_for(device, tell=say) if may_be_gpu else None
    ref = device_ref(device, say, report)
    # Only a GPU can be owned by another process. For a CPU no list of devices is needed.
    nothing = DeviceReport(devices=(), absent=())
    kept = KeptAnalyses(out, ref)
    try:
        corpus, num_kept = kept.joined(corpus)
        if num_kept:
            say(
                f"{num_kept:,} kernels were analysed before an interruption; their analyses are "
                f"read from {kept.folder}"
            )
        with held_for_analysis(ref, report or nothing, str(out)):
            corpus = analyse_corpus(corpus, ref, progress=progress, keep=kept.write)
        write_corpus(out, corpus)
    except BaseException as error:
        kept.close()
        if isinstance(error, KeyboardInterrupt) and kept.folder.exists():
            say(
                f"finished analyses are kept in {kept.folder}; run the same command again to resume"
            )
        raise
    kept.remove()
    return corpus


@app.command(cls=Command)
def stats(
    corpus: Annotated[
        Path, typer.Argument(help="A CORPUS.parquet, or sources.", metavar="CORPUS.parquet")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Count the kernels of a corpus by suite, failure, argument kind and other properties."""
    from workers.corpus.read import read_sources  # noqa: PLC0415
    from workers.corpus.stats import corpus_stats  # noqa: PLC0415

    found = corpus_stats(read_sources([corpus]))
    if as_json:
        answer_json(dataclasses.asdict(found))
        return
    rows: list[tuple[str, object]] = []
    for name, value in dataclasses.asdict(found).items():
        if isinstance(value, dict):
            rows += [(f"{name}: {key}", count) for key, count in list(value.items())[:_MAX_LINES]]
            if len(value) > _MAX_LINES:
                rows.append((f"{name}: {len(value) - _MAX_LINES} more, see --json", None))
        else:
            rows.append((name, value))
    answer_table(str(corpus), ("what", "count"), rows)

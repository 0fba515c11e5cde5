"""``llmperf corpus build|stats``."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
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
_FEWEST_FREE_BYTES, _BYTES_A_KERNEL = 2**20, 1024
"""Free space that an analysed corpus needs: about half a kibibyte per kernel in GitHub's corpus,
and the analyses that are kept until it is written."""
_MAX_LINES = 20
"""Maximum number of lines shown of skipped files, and of each group of counts; ``--json`` of
``stats`` shows all."""


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
            "the analysis.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="Device of --analyse's probe launches (default: cpu)."
        ),
    ] = None,
) -> None:
    """Read sources, find their kernels, signatures, features and families, and write a corpus."""
    from workers.corpus.read import read_sources, write_corpus  # noqa: PLC0415

    if device is not None and not analyse:
        raise CommandError(Exit.USAGE, "--device is the device of --analyse: give both or neither")
    _check_out(out, sources)
    corpus = read_sources(sources, suite=suite)
    if analyse:
        kept = _kept_analyses(out, len(corpus.kernels))
        corpus = _analysed(corpus, device or "cpu", out, kept)
        write_corpus(out, corpus)
        shutil.rmtree(kept, ignore_errors=True)
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


def _kept_analyses(out: Path, num_kernels: int) -> Path:
    """Create the folder beside ``out`` that keeps finished analyses for a second start.

    This also shows, before hours of work, whether ``out`` can be written.
    """
    folder = out.with_name(f".{out.name}.analyses")
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    needed_bytes = _FEWEST_FREE_BYTES + num_kernels * _BYTES_A_KERNEL
    if free_bytes < needed_bytes:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise CommandError(
            Exit.BAD_INPUT,
            f"--out {out}: too little space for the corpus ({free_bytes:,} bytes free, "
            f"{needed_bytes:,} needed): free some space, or name another path",
        )
    return folder


def _analysed(corpus: Corpus, device: str, out: Path, kept: Path) -> Corpus:
    from llmperf.collecting import device_ref  # noqa: PLC0415
    from llmperf.prediction.analysis_cache import AnalysisCache  # noqa: PLC0415
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
    nothing = DeviceReport(devices=(), absent=())  # only GPUs have owners
    cache = AnalysisCache(kept)
    known = {
        one.kernel_id: cache.read(one.kernel_id)
        for one in corpus.kernels
        if one.failure is None and one.analysis is None
    }
    num_known = sum(one is not None for one in known.values())
    if num_known:
        say(f"{num_known:,} kernels were analysed before an interruption ({kept})")
    corpus = dataclasses.replace(
        corpus,
        kernels=tuple(
            dataclasses.replace(one, analysis=one.analysis or known.get(one.kernel_id))
            for one in corpus.kernels
        ),
    )
    try:
        with held_for_analysis(ref, report or nothing, str(out)):
            return analyse_corpus(corpus, ref, progress=progress, keep=cache.write)
    except KeyboardInterrupt:
        say(f"interrupted: finished analyses are kept in {kept}; the same command goes on")
        raise


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

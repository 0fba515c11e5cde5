"""``llmperf report``: opens a dataset, an evaluation, both or a corpus, and has the page written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import llmperf
from llmperf.cli.console import say
from llmperf.cli.paths import local_only
from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from llmperf.html_report import DatasetView, EvaluationView, Stamp

_PREDICTIONS = "predictions.parquet"
_EVALUATION_FACTS = (
    "model",
    "run",
    "split",
    "stamp",
    "noise_floor_within_run_median_ape_percent",
    "censored_share",
)


def report(
    directory: Annotated[
        str,
        typer.Argument(
            help="A dataset (a folder or s3://BUCKET/PREFIX), an evaluation or a CORPUS.parquet.",
            metavar="DIR",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="The HTML file to write.", callback=local_only),
    ],
    evaluation: Annotated[
        Path | None,
        typer.Option(
            "--evaluation", metavar="DIR", help="An evaluation to add to a dataset's report."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about a dataset, an evaluation, both, or a corpus."""
    write_page(directory, out, evaluation)
    say(f"{out} written")


def write_page(directory: str, out: Path, evaluation: Path | None) -> None:
    """Write the page about a dataset, an evaluation, both, or a corpus."""
    from llmperf.html_report import Stamp, report_to_write, write_report  # noqa: PLC0415
    from llmperf_common.store.location import local_folder  # noqa: PLC0415

    report_to_write(out)  # before the work, not only after it
    stamp = Stamp(made_at=datetime.now(UTC), version=llmperf.__version__)
    local = local_folder(directory)
    if local is not None and local.is_file():
        if evaluation is not None:
            raise CommandError(Exit.USAGE, "--evaluation goes with a dataset, not with a corpus")
        _report_corpus(local, out, stamp)
        return
    is_evaluation = local is not None and (local / _PREDICTIONS).is_file()
    scored = local if is_evaluation else evaluation
    dataset = None if is_evaluation else _dataset_view(directory)
    write_report(
        dataset=dataset,
        evaluation=_evaluation_view(scored, dataset) if scored is not None else None,
        out=out,
        stamp=stamp,
    )


def _report_corpus(path: Path, out: Path, stamp: Stamp) -> None:
    from llmperf.html_report import CorpusView, write_corpus_report  # noqa: PLC0415
    from workers.corpus import read_corpus  # noqa: PLC0415

    write_corpus_report(CorpusView(corpus=read_corpus(path), title=path.name), out=out, stamp=stamp)


def _dataset_view(directory: str) -> DatasetView:
    from llmperf.html_report import DatasetView  # noqa: PLC0415
    from llmperf_common.store.location import title_of  # noqa: PLC0415
    from llmperf_common.store.reader import open_dataset  # noqa: PLC0415

    dataset = open_dataset(directory)
    run = dataset.run
    return DatasetView(
        samples=dataset.samples(),
        kernels=dataset.kernels(),
        devices=dataset.devices(),
        title=title_of(directory),
        run={
            "plan_hash": run.plan_hash,
            "corpus_sha256": run.corpus_sha256,
            "config_hash": run.config_hash,
            "harness_version": run.harness_version,
            "created_at": run.created_at,
            "tasks": run.num_tasks,
            "tasks_done": dataset.num_tasks,
        },
        manifest_version=dataset.manifest.version,
        # A kernel that fails early has fewer rows than were planned for it: the plan's rows are known when
        # every task has its result.
        num_planned=dataset.num_samples if dataset.num_tasks == run.num_tasks else None,
        sentinel=dataset.sentinel(),
    )


def _evaluation_view(directory: Path, dataset: DatasetView | None) -> EvaluationView:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from llmperf.html_report import EvaluationView  # noqa: PLC0415

    try:
        predictions = pq.read_table(directory / _PREDICTIONS)
        metrics: dict[str, Any] = json.loads((directory / "metrics.json").read_text("utf-8"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CommandError(
            Exit.BAD_INPUT,
            f"{directory} is no readable evaluation ({error}): name the --out folder of `llmperf evaluate`",
        ) from None
    return EvaluationView(
        predictions=predictions,
        metrics=metrics.get("parts", {}),
        title=directory.resolve().name,
        run={key: metrics[key] for key in _EVALUATION_FACTS if metrics.get(key) is not None},
        interval_level=metrics.get("interval_level"),
        primary_model=metrics.get("model"),
        samples=dataset.samples if dataset else None,
        kernels=dataset.kernels if dataset else None,
    )

"""``llmperf report``: reads a dataset, an evaluation, both, or a corpus; writes an HTML page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import llmperf
from llmperf.cli.console import say
from llmperf.cli.paths import local_only
from llmperf.exits import CommandError, Exit
from llmperf_common.store.files.location import local_folder

if TYPE_CHECKING:
    from llmperf.html_report import DatasetView, EvaluationView, KernelChoice, Stamp

_PREDICTIONS = "predictions.parquet"
_EVALUATION_FACTS = (
    "model",
    "run",
    "split",
    "stamp",
    "noise_floor_within_run_median_ape_percent",
    "censored_share",
)


_SAYS_NOTHING = frozenset(
    ("data", "dataset", "evaluation", "eval", "results", "report", "out", "output")
)
"""Generic folder names, which identify no dataset. The title uses the name of the folder above
instead."""


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
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="Only this kernel (name or id) gets a section of its own; may be repeated.",
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            "--kernels",
            metavar="N|all",
            help="Maximum number of kernels that get a section of their own (default: 300, or "
            "fewer if their sections exceed 4 MB).",
        ),
    ] = None,
    accesses: Annotated[
        str,
        typer.Option(
            "--accesses",
            metavar="WHEN",
            help="auto: draw which work-items of each --kernel access which bytes, if a CPU OpenCL "
            "device can trace a launch; off: draw no such map.",
        ),
    ] = "auto",
) -> None:
    """Write one self-contained HTML page about a dataset, an evaluation, both, or a corpus."""
    choice = kernel_choice(_wanted_kernels(kernel, kernels))
    write_page(directory, out, evaluation, choice, accesses=accesses, progress=say)
    say(f"{out} written")


def write_page(
    directory: str,
    out: Path,
    evaluation: Path | None,
    choice: KernelChoice | None = None,
    *,
    accesses: str = "auto",
    progress: Callable[[str], object] = lambda _line: None,
) -> None:
    """Write the page about a dataset, an evaluation, both, or a corpus.

    Raises:
        ConfigError: ``accesses`` is neither ``auto`` nor ``off``.
        OutputTaken: ``out`` exists and is not a report.
        CommandError: A kernel is not in the dataset, or an option does not fit this kind of page.
    """
    from llmperf.access_traces import traced_accesses  # noqa: PLC0415
    from llmperf.cpu_step import CpuStep  # noqa: PLC0415
    from llmperf.html_report import (  # noqa: PLC0415
        KernelChoice,
        Stamp,
        UnknownKernelError,
        report_to_write,
        write_report,
    )
    from llmperf_common.store.files.location import local_folder  # noqa: PLC0415

    step = CpuStep.parse(accesses, option="accesses", verb="trace")
    report_to_write(out)  # fail before the work, not after it
    choice = choice or KernelChoice()
    stamp = Stamp(made_at=datetime.now(UTC), version=llmperf.__version__)
    local = local_folder(directory)
    if local is not None and os.path.isfile(local):
        if evaluation is not None:
            raise CommandError(
                Exit.USAGE,
                f"--evaluation needs a dataset, but {directory} is a corpus: "
                "name the dataset instead",
            )
        _no_kernels_here(choice, "a corpus")
        _report_corpus(local, out, stamp)
        return
    is_evaluation = local is not None and os.path.isfile(local / _PREDICTIONS)
    if is_evaluation and evaluation is not None:
        raise CommandError(
            Exit.USAGE,
            f"--evaluation needs a dataset, but {directory} is an evaluation: "
            "name the dataset instead",
        )
    scored = local if is_evaluation else evaluation
    if scored is not None and out.resolve().is_relative_to(scored.resolve()):
        raise CommandError(
            Exit.USAGE,
            f"--out {out} lies in the evaluation {scored}, a folder that `llmperf evaluate` "
            "replaces as a whole: name a file elsewhere",
        )
    dataset = None if is_evaluation else _dataset_view(directory)
    if dataset is None:
        _no_kernels_here(choice, "an evaluation alone")
    elif choice.names:
        found = traced_accesses(
            dataset.samples, dataset.kernels, choice.names, step=step, progress=progress
        )
        dataset = replace(dataset, accesses=found)
    try:
        write_report(
            dataset=dataset,
            evaluation=_evaluation_view(scored, dataset) if scored is not None else None,
            out=out,
            stamp=stamp,
            kernels=choice,
        )
    except UnknownKernelError as error:
        raise CommandError(Exit.BAD_INPUT, f"{directory}: {error}") from None


def _wanted_kernels(names: list[str] | None, limit: str | None) -> int | str | list[str] | None:
    """Return the values of ``--kernel`` and ``--kernels`` as an argument of ``kernel_choice``."""
    if names and limit is not None:
        raise CommandError(Exit.USAGE, "--kernel and --kernels exclude each other: give one")
    if limit is None or limit == "all":
        return names or limit
    if not limit.isascii() or not limit.isdigit() or int(limit) < 1:
        raise CommandError(
            Exit.USAGE,
            f"--kernels {limit}: give a whole number of at least 1, or the word 'all'",
        )
    return int(limit)


def kernel_choice(kernels: int | str | Sequence[str] | None) -> KernelChoice:
    """Return which kernels get a section.

    ``kernels`` is a maximum number, ``"all"``, a list of names or ids, or None for the default.

    Raises:
        CommandError: ``kernels`` is another text, or a number below 1.
    """
    from llmperf.html_report import KernelChoice  # noqa: PLC0415

    if kernels is None:
        return KernelChoice()
    if kernels == "all":
        return KernelChoice(limit=None)
    if isinstance(kernels, int) and kernels >= 1:
        return KernelChoice(limit=kernels, limit_bytes=None)
    if isinstance(kernels, int | str):
        raise CommandError(
            Exit.USAGE,
            f"kernels={kernels!r}: give a whole number of at least 1, the word 'all', or a list of "
            "names",
        )
    return KernelChoice(names=tuple(kernels))


def _no_kernels_here(choice: KernelChoice, what: str) -> None:
    from llmperf.html_report import KernelChoice  # noqa: PLC0415

    if choice != KernelChoice():
        raise CommandError(
            Exit.USAGE,
            f"--kernel and --kernels need a dataset: the page of {what} has no kernel sections",
        )


def _report_corpus(path: Path, out: Path, stamp: Stamp) -> None:
    from llmperf.html_report import CorpusView, write_corpus_report  # noqa: PLC0415
    from workers.corpus.read import read_corpus  # noqa: PLC0415

    write_corpus_report(CorpusView(corpus=read_corpus(path), title=path.name), out=out, stamp=stamp)


def _dataset_view(directory: str) -> DatasetView:
    from llmperf.html_report import DatasetView  # noqa: PLC0415
    from llmperf_common.store.tables.reader import open_dataset  # noqa: PLC0415

    dataset = open_dataset(directory)
    run = dataset.run
    return DatasetView(
        samples=dataset.samples(),
        kernels=dataset.kernels(),
        devices=dataset.devices(),
        title=_named(directory),
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
        # The number of planned rows is known only when every task has its result, because a kernel
        # that fails early has fewer rows than were planned.
        num_planned=dataset.num_samples if dataset.num_tasks == run.num_tasks else None,
        sentinel=dataset.sentinel(),
    )


def _named(location: str | Path) -> str:
    """Return the last part of a location that is not generic: ``demo`` of ``runs/demo/data``."""
    folder = local_folder(location)
    parts = str(location if folder is None else folder.resolve()).rstrip("/").split("/")
    telling = [part for part in parts if part and part.lower() not in _SAYS_NOTHING]
    return telling[-1] if telling else parts[-1]


def _evaluation_view(directory: Path, dataset: DatasetView | None) -> EvaluationView:
    import pyarrow as pa  # noqa: PLC0415

    from llmperf.html_report import EvaluationView  # noqa: PLC0415
    from trainer.data.foreign_files import (  # noqa: PLC0415
        read_json_value,
        read_table,
        with_types,
    )
    from trainer.evaluation.scoring import PREDICTIONS  # noqa: PLC0415

    try:
        stored = read_table(directory / _PREDICTIONS, pa.schema([]), others=PREDICTIONS.names)
        predictions = with_types(stored, PREDICTIONS)
        metrics = read_json_value(directory / "metrics.json")
        if not isinstance(metrics, dict):
            raise ValueError("metrics.json is not an object")
        level, model = metrics.get("interval_level"), metrics.get("model")
        if level is not None and not (isinstance(level, float) and 0 < level < 1):
            raise ValueError(
                f"metrics.json: interval_level = {str(level)[:40]} is not between 0 and 1"
            )
        if model is not None and not isinstance(model, str):
            raise ValueError("metrics.json: model is not a name")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CommandError(
            Exit.BAD_INPUT,
            f"{directory} is not a readable evaluation ({error}): "
            "name the --out folder of `llmperf evaluate`",
        ) from None
    return EvaluationView(
        predictions=predictions,
        metrics=metrics.get("parts", {}),
        title=_named(directory),
        run={key: metrics[key] for key in _EVALUATION_FACTS if metrics.get(key) is not None},
        interval_level=level,
        primary_model=model,
        samples=dataset.samples if dataset else None,
        kernels=dataset.kernels if dataset else None,
    )

"""The public Python API: what the commands do, as functions.

Owns the wiring of workers and trainer, which do not know each other. Heavy imports happen inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmperf.collecting import Overrides, collect, collect_on_cluster

if TYPE_CHECKING:
    from llmperf_common.records import Kernel, Signature
    from llmperf_common.store.reader import Dataset
    from llmperf_common.store.verify import VerifyReport
    from trainer.evaluate import EvaluationSummary
    from trainer.train import RunSummary

__all__ = [
    "collect",
    "collect_on_cluster",
    "evaluate",
    "open_dataset",
    "predict",
    "report",
    "train",
    "verify",
]


def open_dataset(path: str | Path) -> Dataset:
    """Open a dataset for reading: ``.samples()``, ``.kernels()``, ``.devices()`` as Arrow tables.

    Args:
        path: its folder, or ``s3://bucket/prefix``.

    Raises:
        StoreError: There is no dataset, or it is damaged.
    """
    from llmperf_common.store.reader import open_dataset as open_  # noqa: PLC0415

    return open_(path)


def verify(path: str | Path) -> VerifyReport:
    """Check every promise of a dataset: hashes, ids, that each task is there once; also while a run goes on.

    Nothing is raised for a damaged dataset: ``problems`` lists what is wrong, ``clean`` says that nothing is.

    Args:
        path: its folder, or ``s3://BUCKET/PREFIX``.
    """
    from llmperf_common.store.verify import verify as verify_  # noqa: PLC0415

    return verify_(path)


def train(
    data: str | Path,
    out: str | Path,
    *,
    preset: str = "gbdt",
    config: str | Path | None = None,
    overrides: Overrides = (),
    progress: bool | Callable[[str], object] | None = None,
) -> RunSummary:
    """Train a predictor on a dataset and write the run folder ``out``.

    Args:
        data: a dataset: its folder, or ``s3://BUCKET/PREFIX``.
        out: the folder to write: new or empty.
        preset: ``gbdt`` or ``log-linear``.
        config: a TOML file over the preset.
        overrides: values over both, by key: ``{"train.seed": 1}``; or texts ``key=value``.
        progress: None is silent, True writes lines to stderr, and a function is called with each.

    Raises:
        ConfigError: A key or value of the config is wrong, or ``out`` holds another run.
        BadInput: The dataset has too little to train on.
        MissingExtra: ``gbdt`` without LightGBM.
    """
    from llmperf.cli.console import say  # noqa: PLC0415
    from trainer.config import load_train_config  # noqa: PLC0415
    from trainer.data import load_data  # noqa: PLC0415
    from trainer.train import train as train_  # noqa: PLC0415

    file = None if config is None else Path(config)
    settings = load_train_config(preset, file=file, overrides=overrides)
    told = say if progress is True else progress or (lambda _line: None)
    return train_(load_data(data), settings, Path(out), told)


def evaluate(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "test",
    allow_seen: bool = False,
) -> EvaluationSummary:
    """Score a trained run on one part of a dataset and write predictions and metrics to ``out``.

    Args:
        run: a run's folder or name.
        data: a dataset: its folder, or ``s3://BUCKET/PREFIX``.
        out: the folder to write: new, empty, or an earlier evaluation.
        split: ``test``, ``validation``, ``calibration``, ``train``, ``seen_configs`` or ``all``.
        allow_seen: score rows of families that the model was trained on; stamps the table.

    Raises:
        BadInput: The run or the part cannot be used (``SeenRows``: it was trained on).
        ConfigError: ``split`` is not a part's name, or ``out`` holds something else.
    """
    from trainer.data import load_data  # noqa: PLC0415
    from trainer.evaluate import evaluate as evaluate_  # noqa: PLC0415
    from trainer.run_folder import load_run, resolve_run  # noqa: PLC0415

    loaded = load_run(resolve_run(run))
    return evaluate_(loaded, load_data(data), split, Path(out), allow_seen=allow_seen)


def report(path: str | Path, out: str | Path, *, evaluation: str | Path | None = None) -> Path:
    """Write one self-contained HTML page about a dataset, an evaluation, both, or a corpus.

    Args:
        path: a dataset (a folder or ``s3://BUCKET/PREFIX``), an evaluation's folder or a CORPUS.parquet.
        out: the HTML file to write.
        evaluation: the folder of an evaluation to add to a dataset's report.

    Returns:
        ``out``.

    Raises:
        StoreError: The dataset cannot be read.
        CommandError: The evaluation cannot be read.
        CorpusError: The corpus cannot be read.
    """
    from llmperf.cli.report import write_page  # noqa: PLC0415

    write_page(str(path), Path(out), None if evaluation is None else Path(evaluation))
    return Path(out)


def predict(
    file: str | Path,
    *,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...],
    kernel: str | None = None,
    model: str | Path | None = None,
    device: str | None = None,
    args: Mapping[str, int | float | str] | None = None,
    sweep: bool = False,
) -> dict[str, Any]:
    """Predict the time of one launch of a kernel, from its source alone: no device is needed.

    Args:
        file: an OpenCL C source.
        global_size: work-items by dimension, 1 to 3 of them.
        local_size: work-items of a work-group by dimension.
        kernel: which kernel of the file; may be left out where it has one.
        model: a run's folder or name; may be left out where ``runs/`` holds one.
        device: device class; may be left out where the model knows one.
        args: by name: elements of a buffer, value of a scalar.
        sweep: also predict every legal local size.

    Returns:
        The document that ``llmperf predict --json`` prints; times in ns.

    Raises:
        BadInput: What is wrong, where, and what to do.
    """
    from trainer.launch import PredictRequest  # noqa: PLC0415
    from trainer.predict import predict as predict_  # noqa: PLC0415
    from trainer.run_folder import load_run, resolve_run  # noqa: PLC0415

    chosen, signature = _kernel_of(Path(file), kernel)
    run = load_run(resolve_run(model) if model is not None else _only_run())
    request = PredictRequest(
        kernel=chosen.name,
        signature=signature,
        global_size=global_size,
        local_size=local_size,
        args=dict(args or {}),
        device=device,
        sweep=sweep,
        kernel_id=chosen.kernel_id,
        source=chosen.source,
    )
    return predict_(run, request)


def _kernel_of(path: Path, wanted: str | None) -> tuple[Kernel, Signature]:
    from trainer.errors import BadInput  # noqa: PLC0415
    from workers.corpus import CorpusError, read_sources  # noqa: PLC0415

    if not path.is_file():
        what = "Is a directory" if path.is_dir() else "No such file"
        raise BadInput(f"{path}: {what}: name a readable OpenCL source file")
    try:
        # As a corpus reads it, headers and all: what was trained on must be known again.
        found = {one.name: one for one in read_sources([path]).kernels}
    except CorpusError as error:
        raise BadInput(str(error)) from None
    names = sorted(found)
    if wanted is None and len(names) > 1:
        raise BadInput(
            f"{path} has {len(names)} kernels: choose one with --kernel: {', '.join(names)}"
        )
    if wanted is not None and wanted not in found:
        raise BadInput(f"{path} has no kernel {wanted!r}: it has {', '.join(names)}")
    chosen = found[wanted if wanted is not None else names[0]]
    if chosen.signature is None or chosen.failure is not None:
        why = chosen.failure.detail if chosen.failure else "its arguments cannot be read"
        raise BadInput(f"{path}: kernel {chosen.name}: {why}")
    return chosen, chosen.signature


def _only_run() -> Path:
    from trainer.errors import BadInput  # noqa: PLC0415
    from trainer.run_folder import known_runs  # noqa: PLC0415

    runs = known_runs()
    if len(runs) == 1:
        return runs[0]
    there = (
        f"runs here: {', '.join(map(str, runs))}"
        if runs
        else "none is here: make one with `llmperf train`"
    )
    raise BadInput(f"--model is missing; {there}")

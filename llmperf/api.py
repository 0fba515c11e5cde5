"""The public Python API: what the commands do, as functions.

Owns the wiring of workers and trainer, which do not know each other. Heavy imports happen inside the functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmperf.collecting import Overrides, collect, collect_on_cluster, state_folder

if TYPE_CHECKING:
    from llmperf.prediction.model import Launch, Model, Size
    from llmperf.prediction.record import Prediction
    from llmperf.progress import LineProgress
    from llmperf_common.store.tables.reader import Dataset
    from llmperf_common.store.upkeep.verify import VerifyReport
    from trainer.evaluation.evaluate import EvaluationSummary
    from trainer.launch.job import TrainJob
    from trainer.life.summary import RunSummary
    from trainer.prediction.calibrate import CalibrationSummary

__all__ = [
    "calibrate",
    "collect",
    "collect_on_cluster",
    "evaluate",
    "load_model",
    "open_dataset",
    "predict",
    "predict_many",
    "report",
    "train",
    "train_on_cluster",
    "verify",
]


def open_dataset(path: str | Path) -> Dataset:
    """Open a dataset for reading: ``.samples()``, ``.kernels()``, ``.devices()`` as Arrow tables.

    Args:
        path: its folder, or ``s3://bucket/prefix``.

    Raises:
        StoreError: There is no dataset, or it is damaged.
    """
    from llmperf_common.store.tables.reader import open_dataset as open_  # noqa: PLC0415

    return open_(path)


def verify(path: str | Path) -> VerifyReport:
    """Check every promise of a dataset: hashes, ids, that each task is there once; also while a run goes on.

    Nothing is raised for a damaged dataset: ``problems`` lists what is wrong, ``clean`` says that nothing is.

    Args:
        path: its folder, or ``s3://BUCKET/PREFIX``.
    """
    from llmperf_common.store.upkeep.verify import verify as verify_  # noqa: PLC0415

    return verify_(path)


def train(
    data: str | Path,
    out: str | Path,
    *,
    preset: str = "gbdt",
    config: str | Path | None = None,
    overrides: Overrides = (),
    init: str | Path | None = None,
    progress: LineProgress = None,
) -> RunSummary:
    """Train a predictor on a dataset and write the run folder ``out``. The same call again resumes.

    Started by ``torchrun`` the processes share the work; all of them return the summary.

    Args:
        data: a dataset: its folder, or ``s3://BUCKET/PREFIX``.
        out: the folder to write: new, empty, or of the same training.
        preset: a preset of ``configs/train/``: ``gbdt``, ``tiny``, ``codegen-2b`` …
        config: a TOML file over the preset.
        overrides: values over both, by key: ``{"train.seed": 1}``; or texts ``key=value``.
        init: pretrained weights: a Hugging Face checkpoint folder, or ``random``.
        progress: None is silent, True writes lines to stderr, and a function is called with each.

    Raises:
        ConfigError: A key or value of the config is wrong, or ``out`` holds another run.
        BadInput: The dataset has too little to train on, or ``init`` is no usable checkpoint.
        MissingExtra: The model's library is not installed.
    """
    from llmperf.cli.console import say  # noqa: PLC0415
    from llmperf.progress import show_of  # noqa: PLC0415
    from trainer.launch.here import train_here  # noqa: PLC0415

    job = _train_job(data, out, preset, config, overrides, init)
    return train_here(job, show_of(progress, say))


def train_on_cluster(
    data: str | Path,
    out: str | Path,
    *,
    preset: str = "codegen-2b",
    config: str | Path | None = None,
    overrides: Overrides = (),
    init: str | Path | None = None,
    num_workers: int = 1,
    progress: LineProgress = None,
) -> RunSummary:
    """Train a language model over the nodes of a Ray cluster. The same call again resumes.

    The cluster is this Ray job's, or that of ``RAY_ADDRESS``; without either a local one is started.

    Args:
        data: a dataset that all nodes see under this name, or ``s3://BUCKET/PREFIX``.
        out: the folder to write, on a file system that all nodes mount.
        preset: as for ``train``.
        config: as for ``train``.
        overrides: as for ``train``.
        init: as for ``train``.
        num_workers: processes, one a GPU where the cluster has GPUs.
        progress: as for ``train``.

    Raises:
        ConfigError: As ``train``; or the model is none that several processes fit.
        BadInput: As ``train``.
        MissingExtra: Ray or the model's library is not installed.
    """
    from llmperf.cli.console import say  # noqa: PLC0415
    from llmperf.progress import show_of  # noqa: PLC0415
    from trainer.launch.ray import train_on_ray  # noqa: PLC0415

    job = _train_job(data, out, preset, config, overrides, init)
    return train_on_ray(job, num_workers, show_of(progress, say))


def is_first_process() -> bool:
    """Whether this process is the first that ``torchrun`` started, or was started without it."""
    return os.environ.get("RANK", "0") == "0"


def _train_job(
    data: str | Path,
    out: str | Path,
    preset: str,
    config: str | Path | None,
    overrides: Overrides,
    init: str | Path | None,
) -> TrainJob:
    from trainer.config import load_train_config  # noqa: PLC0415
    from trainer.launch.job import TrainJob  # noqa: PLC0415

    file = None if config is None else Path(config)
    settings = load_train_config(preset, file=file, overrides=overrides)
    return TrainJob(
        data=str(data), out=Path(out), config=settings, init=None if init is None else str(init)
    )


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
    from trainer.data.dataset import load_data  # noqa: PLC0415
    from trainer.evaluation.evaluate import evaluate as evaluate_  # noqa: PLC0415
    from trainer.run.folder import resolve_run  # noqa: PLC0415
    from trainer.run.loaded import load_run  # noqa: PLC0415

    loaded = load_run(resolve_run(run))
    return evaluate_(loaded, load_data(data), split, Path(out), allow_seen=allow_seen)


def calibrate(
    run: str | Path, data: str | Path, *, launches: int | None = None
) -> CalibrationSummary:
    """Correct a trained run for the kernels that a dataset measured, from a few launches of each.

    The factors are written into the run (``kernel_factors.json``, whole or not at all); ``predict`` and ``evaluate`` use
    them from then on and say so. Factors of other kernels stay.

    Args:
        run: a run's folder or name.
        data: a dataset with launches of the kernels: its folder, or ``s3://BUCKET/PREFIX``.
        launches: use at most so many launches of a kernel, so that ``evaluate`` can score the others; None uses all.

    Raises:
        BadInput: The run cannot be used, or no row can: none is ok, each times several launches a reading, or all are
            of another device class.
        ConfigError: ``launches`` is below 1.
    """
    from llmperf_common.config import ConfigError  # noqa: PLC0415
    from trainer.data.dataset import load_data  # noqa: PLC0415
    from trainer.prediction.calibrate import calibrate_run  # noqa: PLC0415
    from trainer.run.folder import resolve_run  # noqa: PLC0415
    from trainer.run.loaded import load_run  # noqa: PLC0415

    if launches is not None and launches < 1:
        raise ConfigError(f"--launches {launches}: use at least 1 launch of a kernel")
    return calibrate_run(load_run(resolve_run(run)), load_data(data), launches=launches)


def report(
    path: str | Path,
    out: str | Path,
    *,
    evaluation: str | Path | None = None,
    kernels: int | Literal["all"] | Sequence[str] | None = None,
    accesses: str = "auto",
) -> Path:
    """Write one self-contained HTML page about a dataset, an evaluation, both, or a corpus.

    Args:
        path: a dataset (a folder or ``s3://BUCKET/PREFIX``), an evaluation's folder or a CORPUS.parquet.
        out: the HTML file to write.
        evaluation: the folder of an evaluation to add to a dataset's report.
        kernels: kernels of a dataset with a section of their own: at most so many, ``"all"``, or those of
            these names or ids; None is up to 300, or 4 MB of them.
        accesses: ``auto`` draws which work-items of a kernel that is named access which bytes, where a CPU OpenCL
            device can trace it: seconds more; ``off`` does not.

    Returns:
        ``out``.

    Raises:
        OutputTaken: ``out`` holds something that is no report.
        StoreError: The dataset cannot be read.
        CommandError: The evaluation cannot be read, a kernel is not in the dataset, or an argument does not go
            with what ``path`` is.
        CorpusError: The corpus cannot be read.
    """
    from llmperf.cli.report import kernel_choice, write_page  # noqa: PLC0415

    scored = None if evaluation is None else Path(evaluation)
    write_page(str(path), Path(out), scored, kernel_choice(kernels), accesses=accesses)
    return Path(out)


def load_model(
    model: str | Path | None = None,
    *,
    analyse: bool = True,
    measured: str | Path | None = None,
    work: str = "auto",
    progress: LineProgress = None,
) -> Model:
    """Load a trained run, to ask it for many predictions: ``.predict(...)`` and ``.predict_many(...)``.

    Args:
        model: a run's folder or name, or ``h200``, which comes with the package; left out, the only run in
            ``runs/``, or without any the package's.
        analyse: probe new kernels on a CPU OpenCL device, where there is one, to see what they touch.
        measured: a dataset with a few launches of the kernels that will be asked for: they correct this model's
            predictions, and nothing is written.
        work: ``auto`` counts what launches execute on a CPU OpenCL device, where there is one and the model reads it:
            about a second more for a kernel; ``off`` does not.
        progress: None is silent, True writes a line to stderr before each step that takes seconds, and a
            function is called with each.

    Raises:
        BadInput: There is no such run, or it is damaged; or no launch in ``measured`` is ok.
        ConfigError: ``progress`` or ``work`` is none of these.
    """
    from llmperf.cli.console import say  # noqa: PLC0415
    from llmperf.prediction.analysis_cache import AnalysisCache  # noqa: PLC0415
    from llmperf.prediction.model import Model as Model_  # noqa: PLC0415
    from llmperf.progress import show_of  # noqa: PLC0415

    cache = AnalysisCache(state_folder() / "analyses")
    return Model_.load(
        model,
        analyse=analyse,
        cache=cache,
        measured=measured,
        work=work,
        progress=show_of(progress, say),
    )


def predict(
    source: str | Path,
    *,
    global_size: Size,
    local_size: Size,
    kernel: str | None = None,
    model: str | Path | None = None,
    device: str | None = None,
    args: Mapping[str, int | float | str] | None = None,
    sweep: bool = False,
    measured: str | Path | None = None,
    work: str = "auto",
) -> Prediction:
    """Predict the time of one launch of a kernel, from its source; for many, ``load_model`` once.

    No GPU is needed. A new kernel with buffers is probed once on a CPU OpenCL device where there is one.

    Args:
        source: an OpenCL C file, or its text.
        global_size: work-items by dimension, 1 to 3 of them; a number for one dimension.
        local_size: work-items of a work-group, likewise.
        kernel: which kernel of the source; may be left out where it has one.
        model: a run's folder or name, or ``h200``, which comes with the package; left out, the only run in
            ``runs/``, or without any the package's.
        device: device class; may be left out where the model knows one.
        args: by name: elements of a buffer, value of a scalar.
        sweep: also predict every legal local size.
        measured: a dataset with a few launches of the kernel, which correct this prediction.
        work: as of ``load_model``.

    Returns:
        The document that ``llmperf predict --json`` prints, a dictionary; times in ns.

    Raises:
        BadInput: What is wrong, where, and what to do.
        ConfigError: No device is named and the model knows several.
    """
    return load_model(model, measured=measured, work=work).predict(
        source,
        global_size=global_size,
        local_size=local_size,
        kernel=kernel,
        device=device,
        args=args,
        sweep=sweep,
    )


def predict_many(
    source: str | Path,
    launches: Iterable[Launch | Mapping[str, Any]],
    *,
    kernel: str | None = None,
    model: str | Path | None = None,
    device: str | None = None,
    best_local_size: bool = False,
    work: str = "auto",
) -> list[Prediction]:
    """Predict thousands of launches of one kernel: its source is read once, and the model is asked for all at once.

    The times are those of ``predict``, whatever else is asked for; but work is counted for some 500 launches at a time,
    and for as long as it may take (``work``: ``counted`` or ``none`` of each answer). All launches are checked before one is predicted.

    Args:
        source: an OpenCL C file, or its text.
        launches: each a mapping with ``global_size``, ``local_size`` and, if wanted, ``args`` (by name: elements of a
            buffer, value of a scalar) and ``sweep``.
        kernel: which kernel of the source; may be left out where it has one.
        model: a run's folder or name; may be left out where ``runs/`` holds one.
        device: device class; may be left out where the model knows one.
        best_local_size: also compare the legal local sizes of each launch, some 25 launches more for each.
        work: as of ``load_model``.

    Returns:
        A prediction for each launch, in their order; ``local_size_best`` is empty unless it was asked for.

    Raises:
        BadInput: What is wrong, with which launch, and what to do.
        ConfigError: No device is named and the model knows several.
    """
    return load_model(model, work=work).predict_many(
        source, launches, kernel=kernel, device=device, best_local_size=best_local_size
    )

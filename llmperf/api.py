"""The public Python API: one function for each command.

Connects the packages workers and trainer, which do not import each other. Heavy imports happen
inside the functions.
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
        path: the dataset: a folder or ``s3://BUCKET/PREFIX``.

    Raises:
        StoreError: There is no dataset at ``path``, or it is damaged.
    """
    from llmperf_common.store.tables.reader import open_dataset as open_  # noqa: PLC0415

    return open_(path)


def verify(path: str | Path) -> VerifyReport:
    """Check the integrity of a dataset: hashes, ids, and that each task is stored exactly once.

    Damage raises no exception: the report's ``problems`` lists the damage, and its ``clean`` is
    true if there is none. The dataset may be in use by a running collection.

    Args:
        path: the dataset: a folder or ``s3://BUCKET/PREFIX``.
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
    """Train a predictor on a dataset and write the run folder ``out``.

    If the training was interrupted, make the same call again to resume it. Processes that
    ``torchrun`` has started share the work; each of them returns the summary.

    Args:
        data: the dataset: a folder or ``s3://BUCKET/PREFIX``.
        out: the folder to write: new, empty, or left by the same training.
        preset: a preset of ``configs/train/``: ``gbdt``, ``tiny``, ``codegen-2b`` …
        config: a TOML file that overrides the preset.
        overrides: values that override preset and file, by key: ``{"train.seed": 1}``; or texts
            ``key=value``.
        init: pretrained weights: a Hugging Face checkpoint folder, or ``random``.
        progress: None is silent, True writes lines to stderr, a function is called with each line.

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
    """Train a language model over the nodes of a Ray cluster.

    If the training was interrupted, make the same call again to resume it. The cluster is that of
    this Ray job or of ``RAY_ADDRESS``. If there is neither, a local cluster is started.

    Args:
        data: a dataset that all nodes see under this path, or ``s3://BUCKET/PREFIX``.
        out: the folder to write, on a file system that all nodes mount.
        preset: as for ``train``.
        config: as for ``train``.
        overrides: as for ``train``.
        init: as for ``train``.
        num_workers: number of processes; each takes one GPU if the cluster has GPUs.
        progress: as for ``train``.

    Raises:
        ConfigError: As for ``train``; or the model cannot be trained by several processes.
        BadInput: As for ``train``.
        MissingExtra: Ray or the model's library is not installed.
    """
    from llmperf.cli.console import say  # noqa: PLC0415
    from llmperf.progress import show_of  # noqa: PLC0415
    from trainer.launch.ray import train_on_ray  # noqa: PLC0415

    job = _train_job(data, out, preset, config, overrides, init)
    return train_on_ray(job, num_workers, show_of(progress, say))


def is_first_process() -> bool:
    """Whether this process is rank 0 of ``torchrun``, or was not started by ``torchrun``."""
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
        data: the dataset: a folder or ``s3://BUCKET/PREFIX``.
        out: the folder to write: new, empty, or left by an earlier evaluation.
        split: ``test``, ``validation``, ``calibration``, ``train``, ``seen_configs`` or ``all``.
        allow_seen: also score rows of families that the model was trained on; the table says so.

    Raises:
        BadInput: The run or the part cannot be used (``SeenRows``: the model was trained on
            families of the part).
        ConfigError: ``split`` is not the name of a part, or ``out`` holds something else.
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
    """Correct a trained run for measured kernels: fit one factor per kernel from a few launches.

    The factors are written atomically into the run (``kernel_factors.json``); ``predict`` and
    ``evaluate`` apply them from then on and say so. Factors of other kernels stay unchanged.

    Args:
        run: a run's folder or name.
        data: a dataset with launches of the kernels: a folder or ``s3://BUCKET/PREFIX``.
        launches: maximum number of launches used per kernel, so that ``evaluate`` can score the
            others; None: all.

    Raises:
        BadInput: The run cannot be used or comes with LLMPerf, no row is usable, or no factor
            explains the times. A usable row has the status ok, times one launch per reading, and
            is of a device class that the model knows.
        ConfigError: ``launches`` is below 1.
        RunExists: Another process is changing the run.
    """
    from llmperf_common.config import ConfigError  # noqa: PLC0415
    from trainer.data.dataset import load_data  # noqa: PLC0415
    from trainer.prediction.calibrate import calibrate_run  # noqa: PLC0415
    from trainer.run.folder import resolve_run  # noqa: PLC0415
    from trainer.run.loaded import load_run  # noqa: PLC0415

    if launches is not None and launches < 1:
        raise ConfigError(f"--launches {launches}: must be at least 1")
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
        path: a dataset (folder or ``s3://BUCKET/PREFIX``), an evaluation or CORPUS.parquet.
        out: the HTML file to write.
        evaluation: the folder of an evaluation to add to a dataset's report.
        kernels: which kernels of a dataset get a section of their own: a maximum number, ``"all"``,
            or a list of names or ids; None: up to 300 kernels or 4 MB.
        accesses: ``auto`` draws which work-items of a named kernel access which bytes, if a CPU
            OpenCL device can trace a launch (some seconds per kernel); ``off`` draws no such map.

    Returns:
        ``out``.

    Raises:
        OutputTaken: ``out`` exists and is not a report.
        StoreError: The dataset cannot be read.
        CommandError: The evaluation cannot be read, a kernel is not in the dataset, or an argument
            is not allowed for this kind of ``path``.
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
    """Load a trained run for many predictions by ``.predict(...)`` and ``.predict_many(...)``.

    Args:
        model: a run's folder or name, or ``h200``, the model in the package. None: the only run in
            ``runs/``, or the model in the package if there is no run.
        analyse: whether to find the extents of new kernels' buffers by probe launches on a CPU
            OpenCL device, if there is such a device.
        measured: a dataset with a few launches of the kernels to predict. These launches correct
            the predictions of the loaded model; nothing is written.
        work: ``auto`` counts the operations and accesses of launches on a CPU OpenCL device, if
            there is such a device and the model uses the counts (about 1 s per kernel); ``off``
            does not count.
        progress: None is silent, True writes a line to stderr before each step that takes seconds,
            a function is called with each line.

    Raises:
        BadInput: The run does not exist or is damaged; or ``measured`` has no usable launch.
        ConfigError: ``progress`` or ``work`` has none of the values above.
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
    """Predict the time of one launch of a kernel from its source.

    Each call loads the model. For many launches, call ``load_model`` once.

    No GPU is needed. A new kernel with buffers is probed once on a CPU OpenCL device, if there is
    such a device.

    Args:
        source: an OpenCL C file, or its text.
        global_size: work-items in each of 1 to 3 dimensions; a number for one dimension.
        local_size: work-items of a work-group in each dimension; a number for one dimension.
        kernel: name of the kernel; optional if the source has one kernel.
        model: as for ``load_model``.
        device: device class; optional if the model knows one class.
        args: arguments by name: the number of elements of a buffer, the value of a scalar.
        sweep: whether to predict every legal local size, too.
        measured: a dataset with a few launches of the kernel, which correct this prediction.
        work: as for ``load_model``.

    Returns:
        The document that ``llmperf predict --json`` prints, a dictionary; times in ns.

    Raises:
        BadInput: The source, kernel, size or argument cannot be used; the message says why.
        ConfigError: No device is given and the model knows several.
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
    """Predict thousands of launches of one kernel; read its source and call the model only once.

    The model can use the work of a launch, that is, its operations and memory accesses, which are
    counted on a CPU OpenCL device. ``work`` of each prediction says whether this launch's work was
    ``counted`` or not (``none``). A predicted time equals that of ``predict`` if both calls counted
    the work. Counting takes at most 20 s per 512 launches, and ends early if none of 512 launches
    can be counted. All launches are checked before the first is predicted.

    Args:
        source: an OpenCL C file, or its text.
        launches: mappings with ``global_size``, ``local_size`` and optionally ``args`` (by name:
            the number of elements of a buffer, the value of a scalar) and ``sweep``.
        kernel: name of the kernel; optional if the source has one kernel.
        model: as for ``load_model``.
        device: device class; optional if the model knows one class.
        best_local_size: whether to compare the legal local sizes of each launch, which takes about
            25 more predictions per launch.
        work: as for ``load_model``.

    Returns:
        A prediction for each launch, in order; ``local_size_best`` is empty unless asked for.

    Raises:
        BadInput: A launch or the source cannot be used; the message says which and why.
        ConfigError: No device is given and the model knows several.
    """
    return load_model(model, work=work).predict_many(
        source, launches, kernel=kernel, device=device, best_local_size=best_local_size
    )

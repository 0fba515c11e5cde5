"""The public Python API: what the commands do, as functions.

Owns the wiring of workers and trainer, which do not know each other. Heavy imports happen inside the functions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from cluster.collect import ClusterObserver
    from cluster.config import ClusterCollectConfig
    from llmperf.prediction.model import Model, Size
    from llmperf.prediction.record import Prediction
    from llmperf_common.store.reader import Dataset
    from trainer.evaluate import EvaluationSummary
    from trainer.train import RunSummary
    from workers.config import CollectConfig
    from workers.device.interface import DeviceRef
    from workers.device_worker import Control, RunStart
    from workers.loop_interfaces import LoopObserver
    from workers.summary import CollectSummary


def open_dataset(path: str | Path) -> Dataset:
    """Open a dataset for reading: ``.samples()``, ``.kernels()``, ``.devices()`` as Arrow tables.

    Args:
        path: its folder, or ``s3://bucket/prefix``.

    Raises:
        StoreError: There is no dataset, or it is damaged.
    """
    from llmperf_common.store.reader import open_dataset as open_  # noqa: PLC0415

    return open_(path)


def collect(
    *,
    corpus: str | Path | Sequence[str | Path],
    out: str | Path,
    device: str = "auto",
    config: CollectConfig | None = None,
    control: Control | None = None,
    observe: Callable[[RunStart], LoopObserver] | None = None,
    tell: Callable[[str], None] | None = None,
    ledger: str = "sqlite",
) -> CollectSummary:
    """Time the kernels of ``corpus`` on one device into the dataset ``out``; resumes what is there.

    Args:
        corpus: a .cl file, a folder of them, or a CORPUS.parquet; or several of these, which make one corpus.
        out: the dataset folder, or ``s3://bucket/prefix``.
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        config: the tree of ``workers.config``; defaults where None.
        control: lets another thread or a signal handler stop the run.
        observe: makes an observer of the loop from what is known at its start.
        tell: called with a line before each trial of an OpenCL runtime.
        ledger: ``sqlite``, beside the dataset (in the state folder of this machine where that is not a local disk), or the URL of a Redis server that several hosts share.

    Raises:
        CorpusError: No kernel can be read.
        CommandError: No usable device.
        StoreError: ``out`` cannot be used.
    """
    from cluster.homes import kept_beside, ledger_home  # noqa: PLC0415
    from llmperf_common.store.location import open_filesystem  # noqa: PLC0415
    from workers.collect import collect as collect_  # noqa: PLC0415
    from workers.config import CollectConfig as Config  # noqa: PLC0415
    from workers.corpus import read_sources  # noqa: PLC0415
    from workers.device_worker import Control as Control_  # noqa: PLC0415
    from workers.observers import SilentObserver  # noqa: PLC0415

    kernels = read_sources(_several(corpus))
    return collect_(
        corpus=kernels,
        fs=open_filesystem(out),
        events=kept_beside(out, state_folder()) / "events",
        ref=device_ref(device, tell),
        config=config or Config(),
        control=control or Control_(),
        observe=observe or (lambda _start: SilentObserver()),
        home_of=ledger_home(ledger, str(out), state_folder()),
    )


def collect_on_cluster(
    *,
    corpus: str | Path | Sequence[str | Path],
    out: str | Path,
    device: str = "auto",
    config: ClusterCollectConfig | None = None,
    control: Control | None = None,
    observer: ClusterObserver | None = None,
    ledger: str = "sqlite",
) -> CollectSummary:
    """Time the kernels of ``corpus`` on every GPU of a Ray cluster; resumes what is there.

    The cluster is this Ray job's, or that of ``RAY_ADDRESS``; without either a local one is started.

    Args:
        corpus: a .cl file, a folder of them, or a CORPUS.parquet; or several of these, which make one corpus.
        out: the dataset folder, which all nodes share.
        device: ``auto``, ``cuda``, ``pocl``, ``cpu`` or ``replay:FILE``, for every actor.
        config: the tree of ``cluster.config``; defaults where None.
        control: lets another thread or a signal handler stop the run.
        observer: told how the run goes on.
        ledger: ``sqlite`` where all nodes are one host, else the URL of a Redis server.

    Raises:
        MissingExtra: Ray is not installed.
        CorpusError: No kernel can be read.
        DeviceLostError: No node of the cluster can collect.
        StoreError: ``out`` cannot be used.
    """
    from cluster.collect import collect_on_cluster as collect_  # noqa: PLC0415
    from cluster.config import ClusterCollectConfig as Config  # noqa: PLC0415
    from cluster.homes import kept_beside, ledger_home  # noqa: PLC0415
    from cluster.observing import SilentClusterObserver  # noqa: PLC0415
    from llmperf_common.extras import require  # noqa: PLC0415
    from llmperf_common.store.location import local_folder, open_filesystem  # noqa: PLC0415
    from workers.corpus import read_sources  # noqa: PLC0415
    from workers.device_worker import Control as Control_  # noqa: PLC0415

    require("ray", "cluster")
    chosen = config or Config()
    checked = [
        _checked_selector(name) for name in (device, *(p.device for p in chosen.cluster.pools))
    ]
    pools = tuple(
        pool.model_copy(update={"device": name})
        for pool, name in zip(chosen.cluster.pools, checked[1:], strict=True)
    )
    chosen = chosen.model_copy(
        update={"cluster": chosen.cluster.model_copy(update={"pools": pools})}
    )
    from cluster.ray_runtime import RayMeter, connected  # noqa: PLC0415
    from cluster.seat_board import SeatBoard  # noqa: PLC0415
    from cluster.seat_metrics import SeatMetrics  # noqa: PLC0415

    folder = local_folder(out)
    where = str(out) if folder is None else str(folder.absolute())
    home_of = ledger_home(ledger, where, state_folder())  # tells at once of a server that is no use
    kernels = read_sources(_several(corpus))
    fs = open_filesystem(where)
    with (
        connected() as runtime,
        contextlib.closing(
            SeatBoard(
                observer or SilentClusterObserver(),
                fs,
                home_of,
                events=kept_beside(where, state_folder()) / "events",
            )
        ) as board,
    ):
        return collect_(
            corpus=kernels,
            fs=fs,
            location=where,
            runtime=runtime,
            config=chosen,
            device=checked[0] or device,
            ledger=ledger,
            state_folder=state_folder(),
            control=control or Control_(),
            observer=SeatMetrics(board, RayMeter()),
        )


def _several(corpus: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    return [corpus] if isinstance(corpus, str | Path) else corpus


def _checked_selector(device: str | None) -> str | None:
    """Return a selector as every node can use it; None where none was given.

    Raises:
        CommandError: It is none that a cluster knows, or its replay file is bad.
    """
    if device is None or device in ("auto", "cuda", "cpu", "pocl"):
        return device
    if not device.startswith("replay:"):
        what = f"--device {device!r} with --cluster: Ray chooses the GPU; say auto, cuda, cpu, pocl or replay:FILE"
        raise CommandError(Exit.USAGE, what)
    device_ref(device)
    return f"replay:{Path(device.removeprefix('replay:')).absolute()}"


def device_ref(device: str, tell: Callable[[str], None] | None = None) -> DeviceRef:
    """Return how to reach the device that ``--device`` names.

    Args:
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        tell: called with a line before each trial of an OpenCL runtime.

    Raises:
        CommandError: There is none, or the name is no selector.
    """
    from workers.device.find import NoDevice, choose  # noqa: PLC0415

    try:
        ref = choose(device, tell=tell or (lambda _line: None))
    except ValueError as error:
        if device.startswith("replay:"):  # the selector is right, its file is not
            what = f"--device {device}: {error}; mend the file or name another"
            raise CommandError(Exit.BAD_INPUT, what) from None
        raise CommandError(Exit.USAGE, str(error)) from None
    if isinstance(ref, NoDevice):
        raise CommandError(Exit.NO_DEVICE, ref.message())
    return ref


def train(
    *,
    data: str | Path,
    out: str | Path,
    preset: str = "gbdt",
    overrides: tuple[str, ...] = (),
    config_file: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunSummary:
    """Train a predictor on a dataset and write the run folder ``out``.

    Raises:
        ConfigError: A key or value of the config is wrong, or ``out`` holds another run.
        BadInput: The dataset has too little to train on.
    """
    from trainer.config import load_train_config  # noqa: PLC0415
    from trainer.data import load_data  # noqa: PLC0415
    from trainer.train import train as train_  # noqa: PLC0415

    config = load_train_config(preset, file=config_file, overrides=overrides)
    return train_(load_data(data), config, Path(out), progress or (lambda _line: None))


def evaluate(
    *,
    run: str | Path,
    data: str | Path,
    out: str | Path,
    split: str = "test",
    allow_seen: bool = False,
) -> EvaluationSummary:
    """Score a trained run on one part of a dataset and write predictions and metrics to ``out``.

    Raises:
        BadInput: The run or the part cannot be used (``SeenRows``: it was trained on).
    """
    from trainer.data import load_data  # noqa: PLC0415
    from trainer.evaluate import evaluate as evaluate_  # noqa: PLC0415
    from trainer.run_folder import load_run, resolve_run  # noqa: PLC0415

    loaded = load_run(resolve_run(run))
    return evaluate_(loaded, load_data(data), split, Path(out), allow_seen=allow_seen)


def load_model(
    model: str | Path | None = None,
    *,
    analyse: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Load a trained run, to ask it for many predictions: ``.predict(...)`` and ``.predict_many(...)``.

    Args:
        model: a run's folder or name; may be left out where ``runs/`` holds one.
        analyse: probe new kernels on a CPU OpenCL device, where there is one, to see what they touch.
        progress: receives one line before each step that takes seconds.

    Raises:
        BadInput: There is no such run, or it is damaged.
    """
    from llmperf.prediction.analysis_cache import AnalysisCache  # noqa: PLC0415
    from llmperf.prediction.model import Model as Model_  # noqa: PLC0415

    cache = AnalysisCache(state_folder() / "analyses")
    quiet: Callable[[str], None] = lambda _line: None  # noqa: E731
    return Model_.load(model, analyse=analyse, cache=cache, progress=progress or quiet)


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
) -> Prediction:
    """Predict the time of one launch of a kernel, from its source; for many, ``load_model`` once.

    No GPU is needed. A new kernel with arguments left out is probed on a CPU OpenCL device where there is one.

    Args:
        source: an OpenCL C file, or its text.
        global_size: work-items by dimension, 1 to 3 of them; a number for one dimension.
        local_size: work-items of a work-group, likewise.
        kernel: which kernel of the source; may be left out where it has one.
        model: a run's folder or name; may be left out where ``runs/`` holds one.
        device: device class; may be left out where the model knows one.
        args: by name: elements of a buffer, value of a scalar.
        sweep: also predict every legal local size.

    Returns:
        The document that ``llmperf predict --json`` prints, a dictionary; times in ns.

    Raises:
        BadInput: What is wrong, where, and what to do.
        ConfigError: No device is named and the model knows several.
    """
    return load_model(model).predict(
        source,
        global_size=global_size,
        local_size=local_size,
        kernel=kernel,
        device=device,
        args=args,
        sweep=sweep,
    )


def state_folder() -> Path:
    """Return where this user keeps what belongs to no dataset folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "llmperf"

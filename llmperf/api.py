"""The public Python API: what the commands do, as functions.

Owns the wiring of workers and trainer, which do not know each other. Heavy imports happen inside the functions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from cluster.collect import ClusterObserver
    from cluster.config import ClusterCollectConfig
    from llmperf_common.records import Kernel, Signature
    from llmperf_common.store.reader import Dataset
    from trainer.evaluate import EvaluationSummary
    from trainer.train import RunSummary
    from workers.config import CollectConfig
    from workers.device.find import DeviceReport
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
    corpus: str | Path,
    out: str | Path,
    device: str = "auto",
    config: CollectConfig | None = None,
    control: Control | None = None,
    observe: Callable[[RunStart], LoopObserver] | None = None,
    ledger: str = "sqlite",
) -> CollectSummary:
    """Time the kernels of ``corpus`` on one device into the dataset ``out``; resumes what is there.

    Args:
        corpus: a .cl file, a folder of them, or a CORPUS.parquet.
        out: the dataset folder, or ``s3://bucket/prefix``.
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        config: the tree of ``workers.config``; defaults where None.
        control: lets another thread or a signal handler stop the run.
        observe: makes an observer of the loop from what is known at its start.
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

    kernels = read_sources([Path(corpus)])
    return collect_(
        corpus=kernels,
        fs=open_filesystem(out),
        events=kept_beside(out, state_folder()) / "events",
        ref=device_ref(device),
        config=config or Config(),
        control=control or Control_(),
        observe=observe or (lambda _start: SilentObserver()),
        home_of=ledger_home(ledger, str(out), state_folder()),
    )


def collect_on_cluster(
    *,
    corpus: str | Path,
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
        corpus: a .cl file, a folder of them, or a CORPUS.parquet.
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
    kernels = read_sources([Path(corpus)])
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


def device_ref(device: str, report: DeviceReport | None = None) -> DeviceRef:
    """Return how to reach the device that ``--device`` names, among those of ``report`` (probed now where None).

    Raises:
        CommandError: There is none, or the name is no selector.
    """
    from workers.device.find import NoDevice, choose  # noqa: PLC0415

    try:
        ref = choose(device, report)
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


def state_folder() -> Path:
    """Return where this user keeps what belongs to no dataset folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "llmperf"

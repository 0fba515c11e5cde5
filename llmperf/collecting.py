"""The functions ``collect`` and ``collect_on_cluster``, for the Python API and the command.

Owns the translation of simple arguments to config, device, ledger and observer. Heavy imports
happen inside the functions.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llmperf.exits import CommandError, Exit

if TYPE_CHECKING:
    from cluster.config import ClusterCollectConfig
    from llmperf.progress import ProgressOption
    from llmperf_common.config import Node
    from workers.collect.device_worker import Control
    from workers.collect.summary import CollectSummary
    from workers.device.interface import DeviceRef
    from workers.discovery.find import DeviceReport

SourcePath = str | os.PathLike[str]
Overrides = Mapping[str, Any] | Sequence[str]
_LEAST_ADDRESS_SPACE_BYTES = 512 * 2**20
"""Minimum address space in bytes: Python, Arrow and SQLite alone need this much. With an OpenCL
runtime, collecting needs 800 MiB."""
ConfigT = TypeVar("ConfigT", bound="Node")


def collect(
    corpus: SourcePath | Sequence[SourcePath],
    out: str | Path,
    *,
    device: str = "auto",
    preset: str = "default",
    samples_per_kernel: int | None = None,
    strategies: Sequence[str] | None = None,
    seed: int | None = None,
    max_time: float | str | None = None,
    max_failures: int | None = None,
    config: SourcePath | None = None,
    overrides: Overrides = (),
    progress: ProgressOption = None,
    ledger: str = "sqlite",
    control: Control | None = None,
) -> CollectSummary:
    """Time kernels on one device and write a dataset. The same call resumes an unfinished run.

    A failed launch is a row of the dataset, never an exception. Ctrl-C raises KeyboardInterrupt:
    all committed results are kept, and the same call continues the run.

    Args:
        corpus: one or several .cl files, folders, archives, git directories or corpus Parquet
            files.
        out: the dataset: a folder or ``s3://BUCKET/PREFIX``, new or to be resumed.
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        preset: name of a preset (``default``, ``demo``, ``400k``).
        samples_per_kernel: launch configs per kernel; 68 unless the preset sets another number.
        strategies: one or several input strategies, which share the launch configs:
            ``memory_analysis``, ``decoupled``, ``simple``.
        seed: seed of launch configs and inputs.
        max_time: time after which no new task is started: seconds, or a text such as ``"20m"``.
        max_failures: number of failed rows above which the run stops.
        config: a TOML file that overrides the preset.
        overrides: values that override all others, by key: ``{"timing.cold_readings": 0}``; or one
            or several texts ``key=value``.
        progress: None is silent; True shows the command's display on stderr; a function is called
            with a ``CollectProgress`` at the start and whenever a task begins or ends.
        ledger: ``sqlite``, or the URL of a Redis server that several hosts share.
        control: lets another thread or a signal handler stop the run after the current task.

    Returns:
        A summary of the run, in which ``num_planned == num_ok + num_failed + num_pending``.

    Raises:
        ConfigError: An argument or a config key cannot be used.
        CorpusError: No kernel can be read.
        CommandError: No device is usable (``exit_code`` 4), or ``device`` is no valid selector (2).
        NothingCompilesError: No kernel could be built (5); the same call tries the kernels again.
        GpuTakenError: Another process is using the GPU.
        StoreError: ``out`` cannot be used (``ForeignRunError``: it holds another run).
    """
    check_memory_limit()
    from cluster.ledger.locations import kept_beside, ledger_locations  # noqa: PLC0415
    from llmperf.cli.console import say  # noqa: PLC0415
    from llmperf.progress import observers  # noqa: PLC0415
    from llmperf_common.store.files.location import open_filesystem  # noqa: PLC0415
    from workers.collect.collect import collect as collect_  # noqa: PLC0415
    from workers.collect.device_worker import Control as Control_  # noqa: PLC0415
    from workers.config import CollectConfig  # noqa: PLC0415
    from workers.corpus.read import read_sources  # noqa: PLC0415

    values = _values(samples_per_kernel, strategies, seed, max_time, max_failures)
    settings = _settings(CollectConfig, preset, config, values, overrides)
    kernels = read_sources(_sources(corpus))
    where = _absolute(out)
    with observers(progress) as observe:
        return collect_(
            corpus=kernels,
            fs=open_filesystem(where),
            events=kept_beside(where, state_folder()) / "events",
            kept=state_folder() / "kept",
            ref=device_ref(device, say if progress is True else None),
            config=settings,
            control=control or Control_(),
            observe=observe,
            ledger_location_of=ledger_locations(ledger, where, state_folder()),
        )


def collect_on_cluster(
    corpus: SourcePath | Sequence[SourcePath],
    out: str | Path,
    *,
    device: str = "auto",
    preset: str = "default",
    samples_per_kernel: int | None = None,
    strategies: Sequence[str] | None = None,
    seed: int | None = None,
    max_time: float | str | None = None,
    max_failures: int | None = None,
    config: SourcePath | None = None,
    overrides: Overrides = (),
    progress: ProgressOption = None,
    ledger: str = "sqlite",
    control: Control | None = None,
) -> CollectSummary:
    """Time kernels on all GPUs of a Ray cluster and write one dataset.

    The same call resumes an unfinished run.

    The cluster is that of this Ray job or of ``RAY_ADDRESS``. If there is neither, a local cluster
    is started.

    Args:
        corpus: as for ``collect``; only the calling process reads it.
        out: the dataset: a folder that all nodes mount under this path, or ``s3://BUCKET/PREFIX``.
        device: ``auto``, ``cuda``, ``pocl``, ``cpu`` or ``replay:FILE``, for every actor.
        preset: as for ``collect``.
        samples_per_kernel: as for ``collect``.
        strategies: as for ``collect``.
        seed: as for ``collect``.
        max_time: as for ``collect``.
        max_failures: as for ``collect``.
        config: as for ``collect``, with the additional keys ``cluster.*``.
        overrides: as for ``collect``, with the additional keys ``cluster.*``.
        progress: as for ``collect``; a function is called several times a second.
        ledger: ``sqlite`` if all nodes are on one host, otherwise the URL of a Redis server.
        control: as for ``collect``.

    Returns:
        A summary of the run.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: An argument or a config key cannot be used.
        CorpusError: No kernel can be read.
        DeviceLostError: No node of the cluster can collect.
        ManyHostsError: ``ledger`` is ``sqlite``, but the nodes are on several hosts.
        StoreError: ``out`` cannot be used.
    """
    check_memory_limit()
    from cluster.collect import collect_on_cluster as collect_  # noqa: PLC0415
    from cluster.config import ClusterCollectConfig  # noqa: PLC0415
    from cluster.ledger.locations import kept_beside, ledger_locations  # noqa: PLC0415
    from llmperf.progress import cluster_observer  # noqa: PLC0415
    from llmperf_common.extras import require  # noqa: PLC0415
    from llmperf_common.store.files.location import open_filesystem  # noqa: PLC0415
    from workers.collect.device_worker import Control as Control_  # noqa: PLC0415
    from workers.corpus.read import read_sources  # noqa: PLC0415

    require("ray", "cluster")
    values = _values(samples_per_kernel, strategies, seed, max_time, max_failures)
    settings = _settings(ClusterCollectConfig, preset, config, values, overrides)
    selector, settings = _checked_selectors(device, settings)
    from cluster.ray.runtime import RayMeter, connected  # noqa: PLC0415
    from cluster.telemetry.slot_heartbeat import SlotHeartbeat  # noqa: PLC0415
    from cluster.telemetry.slot_metrics import SlotMetrics  # noqa: PLC0415

    where = _absolute(out)
    ledger_location_of = ledger_locations(
        ledger, where, state_folder()
    )  # an unusable server fails here, before the corpus is read
    kernels = read_sources(_sources(corpus))
    fs = open_filesystem(where)
    with (
        connected() as runtime,
        contextlib.closing(
            SlotHeartbeat(
                cluster_observer(progress),
                fs,
                ledger_location_of,
                events=kept_beside(where, state_folder()) / "events",
            )
        ) as heartbeat,
    ):
        return collect_(
            corpus=kernels,
            fs=fs,
            location=where,
            runtime=runtime,
            config=settings,
            device=selector,
            ledger=ledger,
            state_folder=state_folder(),
            control=control or Control_(),
            observer=SlotMetrics(heartbeat, RayMeter()),
        )


def device_ref(
    device: str,
    tell: Callable[[str], None] | None = None,
    report: DeviceReport | None = None,
) -> DeviceRef:
    """Return a reference to the device that ``--device`` selects.

    Args:
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        tell: called with a line of text before each trial of an OpenCL runtime.
        report: the known devices; if it is None, the runtimes are tried now.

    Raises:
        CommandError: No such device is usable, or ``device`` is no valid selector.
    """
    from workers.discovery.find import NoDevice, choose  # noqa: PLC0415

    try:
        ref = choose(device, report, tell=tell or (lambda _line: None))
    except ValueError as error:
        if device.startswith("replay:"):  # the selector is valid, but its file is not
            what = f"--device {device}: {error}; correct the file or name another"
            raise CommandError(Exit.BAD_INPUT, what) from None
        raise CommandError(Exit.USAGE, str(error)) from None
    if isinstance(ref, NoDevice):
        raise CommandError(Exit.NO_DEVICE, ref.message())
    return ref


def state_folder() -> Path:
    """Return this user's folder for state that is not stored inside a dataset."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base).absolute() / "llmperf"


def parse_duration_s(text: str) -> float:
    """Return the seconds that ``90``, ``90s``, ``20m`` or ``2h`` stand for.

    >>> parse_duration_s("20m")
    1200.0
    """
    factors = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    number, factor = (text[:-1], factors[text[-1]]) if text[-1:] in factors else (text, 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise CommandError(Exit.USAGE, f"--max-time {text!r}: write it as 90, 90s, 20m or 2h")
    return seconds


def check_memory_limit() -> None:
    """Raise CommandError if ``ulimit -v`` allows too little memory for any collector."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE_BYTES:
        what = (
            f"address space is limited to {limit // 2**20:,} MiB here (`ulimit -v`), "
            "but collecting needs about 1 GiB"
        )
        raise CommandError(Exit.BAD_INPUT, f"{what}: raise or remove that limit")


def _absolute(out: str | Path) -> str:
    """Return a dataset's location that stays valid if a callback changes the working directory."""
    from llmperf_common.store.files.location import local_folder  # noqa: PLC0415

    folder = local_folder(out)
    return str(out) if folder is None else str(folder.absolute())


def _sources(corpus: SourcePath | Sequence[SourcePath]) -> list[Path]:
    given = [corpus] if isinstance(corpus, str | os.PathLike) else corpus
    return [Path(one) for one in given]


def _values(
    samples_per_kernel: int | None,
    strategies: Sequence[str] | None,
    seed: int | None,
    max_time: float | str | None,
    max_failures: int | None,
) -> dict[str, Any]:
    return {
        "plan.samples_per_kernel": samples_per_kernel,
        "plan.strategies": [strategies] if isinstance(strategies, str) else strategies,
        "plan.seed": seed,
        "limits.max_time_s": parse_duration_s(max_time) if isinstance(max_time, str) else max_time,
        "limits.max_failures": max_failures,
    }


def _settings(
    tree: type[ConfigT],
    preset: str,
    config: SourcePath | None,
    values: Mapping[str, Any],
    overrides: Overrides,
) -> ConfigT:
    from llmperf_common.config import load_config  # noqa: PLC0415

    return load_config(
        tree,
        preset=preset,
        preset_folder="collect",
        file=None if config is None else Path(config),
        values=values,
        overrides=overrides,
    )


def _checked_selectors(
    device: str, config: ClusterCollectConfig
) -> tuple[str, ClusterCollectConfig]:
    """Return ``device`` and ``config`` with selectors in forms that are valid on every node."""
    pools = tuple(
        pool
        if pool.device is None
        else pool.model_copy(update={"device": _checked_selector(pool.device)})
        for pool in config.cluster.pools
    )
    cluster = config.cluster.model_copy(update={"pools": pools})
    return _checked_selector(device), config.model_copy(update={"cluster": cluster})


def _checked_selector(device: str) -> str:
    """Return a selector in a form that is valid on every node (replay files by absolute path).

    Raises:
        CommandError: A cluster does not allow this selector, or its replay file cannot be used.
    """
    if device in ("auto", "cuda", "cpu", "pocl"):
        return device
    if not device.startswith("replay:"):
        what = (
            f"--device {device!r} with --cluster: Ray chooses the GPU; "
            "use auto, cuda, cpu, pocl or replay:FILE"
        )
        raise CommandError(Exit.USAGE, what)
    device_ref(device)
    return f"replay:{Path(device.removeprefix('replay:')).absolute()}"

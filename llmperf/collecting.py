"""Collecting, as the Python API and the commands do it: on one device, or on every GPU of a cluster.

Owns the way from simple arguments to config, device, ledger and observer. Heavy imports happen inside the functions.
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
"""With less not all libraries load (Python, Arrow, SQLite), and no OpenCL runtime opens a device: 800 MiB did."""
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
    """Time kernels on one device into a dataset. The same call again resumes, or finds nothing left to do.

    A failed launch is a row of the dataset, never an exception. Ctrl-C raises KeyboardInterrupt: what was
    committed by then is kept, and the same call goes on.

    Args:
        corpus: a .cl file, a folder, archive or git directory of them, or a CORPUS.parquet; or several of these.
        out: the dataset: a folder or ``s3://BUCKET/PREFIX``, new or one to resume.
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        preset: name of a preset (``default``, ``demo``, ``400k``).
        samples_per_kernel: launch configs of each kernel; 68 unless the preset says otherwise.
        strategies: input strategy, or several that share them: ``memory_analysis``, ``decoupled``, ``simple``.
        seed: of configs and inputs.
        max_time: seconds, or a text as ``"20m"``, after which no new task is begun.
        max_failures: stop after more failed rows than this.
        config: a TOML file over the preset.
        overrides: values over all of these, by key: ``{"timing.cold_readings": 0}``; or a text ``key=value``, or several.
        progress: None is silent, True shows what the command shows on stderr, and a function is called with a
            ``CollectProgress`` at the start and whenever a task begins or ends.
        ledger: ``sqlite``, or the URL of a Redis server that several hosts share.
        control: lets another thread or a signal handler stop the run after the task in hand.

    Returns:
        How the run ended; ``num_planned == num_ok + num_failed + num_pending``.

    Raises:
        ConfigError: An argument or a key of the config cannot be used.
        CorpusError: No kernel can be read.
        CommandError: There is no usable device (``exit_code`` 4), or ``device`` is no selector (2).
        NothingCompilesError: No kernel could be built (5); their tasks are tried again by the same call.
        GpuTakenError: Another process is at work on the GPU.
        StoreError: ``out`` cannot be used (``ForeignRunError``: it holds the dataset of another run).
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
    with observers(progress) as observe:
        return collect_(
            corpus=kernels,
            fs=open_filesystem(out),
            events=kept_beside(out, state_folder()) / "events",
            kept=state_folder() / "kept",
            ref=device_ref(device, say if progress is True else None),
            config=settings,
            control=control or Control_(),
            observe=observe,
            ledger_location_of=ledger_locations(ledger, str(out), state_folder()),
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
    """Time kernels on every GPU of a Ray cluster into one dataset. The same call again resumes.

    The cluster is this Ray job's, or that of ``RAY_ADDRESS``; without either a local one is started. The
    arguments are those of ``collect``, but for these.

    Args:
        corpus: as for ``collect``; only the process that calls reads it.
        out: the dataset: a folder that all nodes mount under this name, or ``s3://BUCKET/PREFIX``.
        device: ``auto``, ``cuda``, ``pocl``, ``cpu`` or ``replay:FILE``, for every actor.
        preset: as for ``collect``.
        samples_per_kernel: as for ``collect``.
        strategies: as for ``collect``.
        seed: as for ``collect``.
        max_time: as for ``collect``.
        max_failures: as for ``collect``.
        config: as for ``collect``; also the keys of ``cluster``.
        overrides: as for ``collect``; also the keys of ``cluster``.
        progress: as for ``collect``; a function is called several times a second.
        ledger: ``sqlite`` where all nodes are one host, else the URL of a Redis server.
        control: as for ``collect``.

    Returns:
        How the run ended.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: An argument or a key of the config cannot be used.
        CorpusError: No kernel can be read.
        DeviceLostError: No node of the cluster can collect.
        ManyHostsError: ``ledger`` is ``sqlite``, and the nodes are several hosts.
        StoreError: ``out`` cannot be used.
    """
    check_memory_limit()
    from cluster.collect import collect_on_cluster as collect_  # noqa: PLC0415
    from cluster.config import ClusterCollectConfig  # noqa: PLC0415
    from cluster.ledger.locations import kept_beside, ledger_locations  # noqa: PLC0415
    from llmperf.progress import cluster_observer  # noqa: PLC0415
    from llmperf_common.extras import require  # noqa: PLC0415
    from llmperf_common.store.files.location import local_folder, open_filesystem  # noqa: PLC0415
    from workers.collect.device_worker import Control as Control_  # noqa: PLC0415
    from workers.corpus.read import read_sources  # noqa: PLC0415

    require("ray", "cluster")
    values = _values(samples_per_kernel, strategies, seed, max_time, max_failures)
    settings = _settings(ClusterCollectConfig, preset, config, values, overrides)
    selector, settings = _checked_selectors(device, settings)
    from cluster.ray.runtime import RayMeter, connected  # noqa: PLC0415
    from cluster.telemetry.slot_heartbeat import SlotHeartbeat  # noqa: PLC0415
    from cluster.telemetry.slot_metrics import SlotMetrics  # noqa: PLC0415

    folder = local_folder(out)
    where = str(out) if folder is None else str(folder.absolute())
    ledger_location_of = ledger_locations(
        ledger, where, state_folder()
    )  # tells at once of a server that is no use
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
    """Return how to reach the device that ``--device`` names.

    Args:
        device: ``auto``, ``pocl``, ``cpu``, ``cuda[:N]`` or ``replay:FILE``.
        tell: called with a line before each trial of an OpenCL runtime.
        report: what was found; tried now where None.

    Raises:
        CommandError: There is none, or the name is no selector.
    """
    from workers.discovery.find import NoDevice, choose  # noqa: PLC0415

    try:
        ref = choose(device, report, tell=tell or (lambda _line: None))
    except ValueError as error:
        if device.startswith("replay:"):  # the selector is right, its file is not
            what = f"--device {device}: {error}; mend the file or name another"
            raise CommandError(Exit.BAD_INPUT, what) from None
        raise CommandError(Exit.USAGE, str(error)) from None
    if isinstance(ref, NoDevice):
        raise CommandError(Exit.NO_DEVICE, ref.message())
    return ref


def state_folder() -> Path:
    """Return where this user keeps what belongs to no dataset folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "llmperf"


def parse_duration_s(text: str) -> float:
    """Read ``90``, ``90s``, ``20m`` or ``2h`` as seconds.

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
    """Raise CommandError where this process may not have the memory that any collector needs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE_BYTES:
        what = f"address space is limited to {limit // 2**20:,} MiB here (`ulimit -v`), and collecting needs about 1 GiB"
        raise CommandError(Exit.BAD_INPUT, f"{what}: raise that limit, or run without it")


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
    """Return ``device``, and ``config`` with the devices of its pools, as every node can use them."""
    pools = tuple(
        pool
        if pool.device is None
        else pool.model_copy(update={"device": _checked_selector(pool.device)})
        for pool in config.cluster.pools
    )
    cluster = config.cluster.model_copy(update={"pools": pools})
    return _checked_selector(device), config.model_copy(update={"cluster": cluster})


def _checked_selector(device: str) -> str:
    """Return a selector as every node can use it.

    Raises:
        CommandError: It is none that a cluster knows, or its replay file is bad.
    """
    if device in ("auto", "cuda", "cpu", "pocl"):
        return device
    if not device.startswith("replay:"):
        what = f"--device {device!r} with --cluster: Ray chooses the GPU; say auto, cuda, cpu, pocl or replay:FILE"
        raise CommandError(Exit.USAGE, what)
    device_ref(device)
    return f"replay:{Path(device.removeprefix('replay:')).absolute()}"

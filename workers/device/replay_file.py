"""The file behind ``--device replay:FILE``: recorded timings, a time model, scripted misbehaviour.

Owns the format and its validation. JSON, for example::

    {"device": {"device_class": "replay-small", "compute_units": 4},
     "timings": [{"kernel": "vadd", "global_size": [1024], "local_size": [64],
                  "time_ns": [810, 795]}],
     "model": {"floor_ns": 4000, "ns_per_work_item": 0.5, "noise": 0.01},
     "speed": 0,
     "analyses": [{"kernel": "vadd", "analysis": [{"position": 0, "constant": 0, "terms":
                   [{"factors": ["global_size_0"], "coefficient": 1}]}], "data_dependent": false}],
     "behaviours": [{"kernel": "bad_*", "at_config": 2, "action": "fault"}]}

Every key may be left out, except those inside a timing, an analysis or a behaviour.
"""

from __future__ import annotations

import fnmatch
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from llmperf_common.analysis import Analysis
from llmperf_common.config import ConfigError, Node
from llmperf_common.files.foreign_json import check_characters, parse_json
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from llmperf_common.ids import content_id
from llmperf_common.records import Device
from llmperf_common.store.tables.analysis_rows import analysis_from_row
from llmperf_common.store.tables.foreign_analysis import check_analysis

_MAX_BYTES = 256 * 2**20
_MAX_UNITS = 2**31 - 1
_MAX_SIZE = 2**53
"""Largest number of work-items and of bytes. The numbers are far above those of any device, and fit
the columns of ``devices`` and the numbers of JSON."""
_MAX_RATE = 1e12
"""Largest frequency (MHz), bandwidth and throughput."""
_MAX_NS = 1e15
"""Longest time of a model, about 12 days. Products of larger numbers would not be finite."""
_MAX_FACTOR = 1e6
Size = Annotated[int, Field(ge=1, le=_MAX_SIZE)]
Rate = Annotated[float, Field(gt=0, le=_MAX_RATE)]


class Action(StrEnum):
    """What a kernel does to its process or to its times."""

    HANG = "hang"
    """A launch never ends."""
    FAULT = "fault"
    """A launch ends in a sticky ``device_fault``."""
    EXIT = "exit"
    """A launch kills its process with SIGSEGV."""
    EXIT_AFTER_RESULT = "exit_after_result"
    """The process dies 20 ms after the config's last launch, when its result has been sent."""
    LAUNCH_ERROR = "launch_error"
    OUT_OF_MEMORY = "out_of_memory"
    """``prepare`` refuses the config."""
    LIE = "lie"
    """Times are multiplied by ``factor``."""
    SLOW = "slow"
    """Each launch takes ``seconds`` longer in wall time; its device time does not change."""
    BUILD_ERROR = "build_error"
    CRASH_COMPILE = "crash_compile"
    HANG_COMPILE = "hang_compile"
    SLOW_COMPILE = "slow_compile"
    """The build takes ``seconds`` longer in wall time."""
    CRASH_ANALYSIS = "crash_analysis"
    """The memory analysis ends its process."""
    HANG_ANALYSIS = "hang_analysis"


ANALYSIS_ACTIONS = frozenset({Action.CRASH_ANALYSIS, Action.HANG_ANALYSIS})
COMPILE_ACTIONS = frozenset(
    {Action.BUILD_ERROR, Action.CRASH_COMPILE, Action.HANG_COMPILE, Action.SLOW_COMPILE}
)


class ReplayDevice(Node):
    """The device record of the replay; the defaults describe a small, plausible GPU."""

    device_class: str = Field(default="replay", pattern=r"^[a-z0-9-]+$")
    device_uuid: str = "replay-0"
    name: str = "Replay device"
    platform: str = "replay"
    driver: str = "1"
    compute_units: int = Field(default=4, ge=1, le=_MAX_UNITS)
    max_work_group_size: Size = 1024
    max_work_item_sizes: tuple[Size, ...] = Field(default=(1024, 1024, 64), min_length=1)
    max_clock_mhz: Rate | None = 1000.0
    global_memory_bytes: Size = 8 * 2**30
    max_allocation_bytes: Size = 2 * 2**30
    local_memory_bytes: Size = 48 * 1024
    last_level_cache_bytes: Size = 4 * 2**20
    has_fp64: bool = True
    has_half: bool = False
    timer_step_ns: float | None = Field(default=1.0, gt=0, le=_MAX_NS)
    peak_dram_gbps: Rate | None = None
    peak_l2_gbps: Rate | None = None
    peak_fp32_gflops: Rate | None = None
    peak_fp64_gflops: Rate | None = None
    launch_floor_ns: float | None = Field(default=None, gt=0, le=_MAX_NS)

    def record(self) -> Device:
        """Return the device's record."""
        identity = [self.device_class, self.device_uuid, self.name, self.driver]
        return Device(device_id=content_id("device", identity), **self.model_dump())


class RecordedTiming(Node):
    """Recorded readings of one kernel and NDRange; launches use them in order, again and again."""

    kernel: str
    global_size: tuple[int, ...] = Field(min_length=1, max_length=3)
    local_size: tuple[int, ...] = Field(min_length=1, max_length=3)
    time_ns: tuple[float, ...] = Field(min_length=1)


class RecordedAnalysis(Node):
    """The memory analysis of one kernel: the same columns as a dataset's row of ``kernels``."""

    kernel: str
    analysis: tuple[dict[str, Any], ...] = ()
    data_dependent: bool | None = None
    index_roles: tuple[dict[str, Any], ...] = ()
    analysis_failure: str | None = None
    overflowing_local_sizes: tuple[tuple[int, ...], ...] = ()
    inputs: dict[str, Any] | None = None

    @pydantic.model_validator(mode="after")
    def _can_be_read(self) -> RecordedAnalysis:
        try:
            check_analysis(self.record())
        except (KeyError, TypeError) as error:
            raise ValueError(f"the analysis of {self.kernel!r} cannot be read: {error!r}") from None
        return self

    def record(self) -> Analysis:
        """Return the analysis."""
        found = analysis_from_row(self.model_dump())
        assert found is not None, "index_roles is not null here"
        return found


class TimeModel(Node):
    """A config's time without recorded readings: floor + work-items x rate, with seeded noise."""

    floor_ns: float = Field(default=4000.0, gt=0, le=_MAX_NS)
    ns_per_work_item: float = Field(default=0.1, ge=0, le=_MAX_NS)
    noise: float = Field(default=0.005, ge=0, lt=1)
    """Half width of the uniform relative noise."""
    cold_factor: float = Field(default=1.5, ge=1, le=_MAX_FACTOR)
    """A launch after a cache flush takes this many times longer."""


class Behaviour(Node):
    """One scripted misbehaviour."""

    kernel: str
    """A glob over kernel names."""
    action: Action
    at_config: int | None = Field(default=None, ge=0)
    """Misbehave only at this ``prepare`` of the loaded kernel, counted from 0; None: at each."""
    factor: float = Field(default=2.0, gt=0, le=_MAX_FACTOR)
    seconds: float = Field(default=0.1, ge=0)
    once: bool = False
    """Whether to happen once over all processes; a file beside the replay file records that."""

    def applies(self, kernel: str, config_index: int | None) -> bool:
        """Return whether this behaviour applies to a kernel at its config of this index."""
        if not fnmatch.fnmatchcase(kernel, self.kernel):
            return False
        return self.at_config is None or config_index is None or self.at_config == config_index


class ReplayFile(Node):
    """The whole file."""

    device: ReplayDevice = ReplayDevice()
    timings: tuple[RecordedTiming, ...] = ()
    analyses: tuple[RecordedAnalysis, ...] = ()
    model: TimeModel = TimeModel()
    speed: float = Field(default=0.0, ge=0)
    """Wall seconds per second of device time; 0: launches return at once."""
    seed: int = 0
    sentinel_factors: tuple[float, ...] = ()
    """Factors of the sentinel's readings, in order over all processes; later readings have the
    factor 1. A file beside the replay file counts the readings."""
    behaviours: tuple[Behaviour, ...] = ()
    counts_work: bool = False
    """Whether to count the launches' work on a CPU OpenCL device of this host, as for a GPU."""


def read_replay_file(path: Path) -> ReplayFile:
    """Read and check a replay file.

    Raises:
        ValueError: The file cannot be read or is not JSON, or it has an unknown key or a bad value.
            The message names the file and the key.
    """
    try:
        data = read_plain(path, max_bytes=_MAX_BYTES)
        values = parse_json(data)
        if not data.isascii() or b"\\u" in data:
            check_characters(values)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnfitFileError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a JSON object is needed, not {type(values).__name__}")
    try:
        return ReplayFile.from_mapping(values)
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None

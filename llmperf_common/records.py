"""The values that travel between the packages: kernels, launch configs, timings, results.

Owns their types and nothing else: no parsing, no device, no storage. Sizes are in elements or
work-items, times in nanoseconds; the unit is in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmperf_common.analysis import Analysis, Contents
from llmperf_common.builds import Build
from llmperf_common.failures import Failure
from llmperf_common.features.work import Work


class ArgumentKind(StrEnum):
    """The kind of an argument. A kernel with one of the last five kinds is ``unsupported``."""

    GLOBAL_BUFFER = "global_buffer"
    CONSTANT_BUFFER = "constant_buffer"
    LOCAL_BUFFER = "local_buffer"
    SCALAR = "scalar"
    IMAGE = "image"
    SAMPLER = "sampler"
    PIPE = "pipe"
    STRUCT = "struct"
    OTHER = "other"

    @property
    def is_buffer(self) -> bool:
        """Whether the argument is a pointer into global, constant or local memory."""
        return self in (self.GLOBAL_BUFFER, self.CONSTANT_BUFFER, self.LOCAL_BUFFER)


class Access(StrEnum):
    """How a kernel uses a buffer; ``READ_WRITE`` if it does both, or if this is unknown."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read_write"
    NONE = "none"


class Strategy(StrEnum):
    """How buffer sizes and scalar values follow from the NDRange."""

    MEMORY_ANALYSIS = "memory_analysis"
    SIMPLE = "simple"
    DECOUPLED = "decoupled"


STRATEGY_PRECEDENCE = (Strategy.MEMORY_ANALYSIS, Strategy.DECOUPLED, Strategy.SIMPLE)
"""The order of strategies: ``input_strategy`` is the first of them that planned the config."""


class Regime(StrEnum):
    """How full the device is: the number of work-groups relative to compute units (SMs)."""

    IDLE_SM = "idle_sm"
    UNDER_UTILISED = "under_utilised"
    FULLY_UTILISED = "fully_utilised"


class StopReason(StrEnum):
    """Why no further reading was taken."""

    RELATIVE_ERROR = "relative_error"
    """The standard error of the mean fell to ``timing.relative_standard_error``."""
    MAX_READINGS = "max_readings"
    SAMPLE_BUDGET = "sample_budget"
    """``timing.sample_budget_ms`` of launches was spent."""
    LONG_LAUNCH = "long_launch"
    """The launch is long: three readings suffice above 5 ms, one above 20 ms."""
    FIXED = "fixed"
    """The device takes a fixed number of readings (replay)."""


class SizeRole(StrEnum):
    """The use of an integer scalar in the source, by which input strategies choose its value."""

    GUARD_0 = "guard_0"
    """The scalar is compared with an index of NDRange dimension 0: ``if (i < n)``."""
    GUARD_1 = "guard_1"
    GUARD_2 = "guard_2"
    PITCH = "pitch"
    """The scalar is multiplied with an index: the row length of a matrix."""
    LANES = "lanes"
    """The scalar divides a local id (``/`` or ``%``): how many work-items work together."""
    LOOP = "loop"
    """The scalar bounds a loop and has none of the roles above."""
    NONE = "none"


MAX_ELEMENT_BYTES = 2**31 - 1
"""Maximum number of bytes of one element of an argument that ``kernels.args`` can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """``count`` consecutive scalars of one type, at ``offset_bytes`` of an element."""

    offset_bytes: int
    scalar_type: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One declared argument of a kernel.

    ``type_name`` is the type as written (typedefs kept). ``scalar_type`` is its canonical OpenCL
    scalar (``float``, ``uint``, ``half``, ...). ``vector_width`` is 1 for scalars. ``element_bytes``
    is the size of an element of the declared pointee type (a float3 has 16) or of the value.
    """

    position: int
    name: str
    kind: ArgumentKind
    type_name: str
    scalar_type: str
    vector_width: int
    element_bytes: int
    access: Access
    is_const: bool = False
    leaves: tuple[Leaf, ...] = ()
    """The members of a structure: the scalars of one element, unless all are ``scalar_type``."""
    size_role: SizeRole = SizeRole.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The facts about one kernel that follow from its source alone.

    ``dims`` is the number of NDRange dimensions that the kernel uses (1 to 3);
    ``required_local_size`` is the ``reqd_work_group_size`` attribute or None.
    ``workers/source/signature.py`` makes ``static_features``;
    ``llmperf_common/features/features.py`` combines them with a launch.
    """

    arguments: tuple[Argument, ...]
    dims: int
    required_local_size: tuple[int, ...] | None
    static_local_bytes: int
    static_features: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One ``__kernel`` function with the source that it needs.

    ``failure`` says why the kernel cannot be launched. Such a kernel stays in the corpus and gives
    one failed row. ``signature`` is None only where the arguments could not be read; an
    ``unsupported`` kernel (image, sampler, structure by value) has a signature and a failure. Every
    kernel has at least one of the two.
    """

    kernel_id: str
    name: str
    source: str
    source_sha256: str
    path: str
    suite: str
    family_id: str
    build_options: str
    signature: Signature | None
    failure: Failure | None
    analysis: Analysis | None = None
    """Set by ``corpus build --analyse``. If it is None, the task analyses the kernel first."""
    invented_macros: tuple[str, ...] | None = None
    """Options in ``build_options`` that LLMPerf added for macros; None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArgument:
    """One argument of a launch config: ``elements`` for buffers, ``value`` for scalars.

    ``contents`` is None where ``workers/plan/inputs.py`` fills a buffer by its type alone.
    """

    position: int
    kind: ArgumentKind
    elements: int | None = None
    value: float | int | None = None
    contents: Contents | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """The NDRange and every argument's size or value: the launch that one sample times."""

    sample_id: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    args: tuple[LaunchArgument, ...]
    regime: Regime | None
    strategies: tuple[Strategy, ...]
    seed: int

    @property
    def num_work_groups(self) -> int:
        """Number of work-groups: the product over all dimensions of global size ÷ local size."""
        product = 1
        for total, group in zip(self.global_size, self.local_size, strict=True):
            product *= total // group
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Results of the checks of one sample; None where a check was not made.

    ``writes_output``, ``deterministic`` and ``input_sensitive`` are checked on three configs of a
    task. ``above_floor``: the median is at least the bytes touched ÷ the measured peak bandwidth.
    """

    writes_output: bool | None = None
    deterministic: bool | None = None
    input_sensitive: bool | None = None
    stationary: bool | None = None
    data_dependent: bool | None = None
    above_floor: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Every reading of one launch config, in nanoseconds of device event time.

    ``time_ns`` holds the warm readings in launch order; each is the mean over
    ``launches_per_reading`` launches. ``first_ns`` is the time of the config's first launch.
    ``cold_ns`` holds readings that each followed a flush of the last-level cache. ``sm_clock_mhz``,
    ``temperature_c`` and ``throttled`` are None where they cannot be measured.
    """

    time_ns: tuple[float, ...]
    first_ns: float
    cold_ns: tuple[float, ...]
    launches_per_reading: int
    stop_reason: StopReason
    checks: Checks
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: bool | None = None


Outcome = Timing | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One launch config, its outcome and its origin.

    A kernel that fails before any launch is planned gives one sample whose ``config`` has empty
    sizes. ``work`` is the counted work, or says why counting failed; None if it was not counted.
    """

    config: LaunchConfig
    outcome: Outcome
    task_attempt: int
    worker_id: str
    created_at_us: int
    """Microseconds since 1970, UTC."""
    work: Work | Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device's properties: what its runtime reports, and peaks that LLMPerf's kernels measure.

    Peaks are None until measured. ``device_id`` is a hash of class, uuid, name and driver. Launch
    plans depend on ``compute_units`` and the limits. ``plain_work_group_size`` is the largest
    work-group of a kernel without a required size (LLMPerf's empty kernel). With NVIDIA's OpenCL it
    is 256 on a device that allows 1,024.

    The fields from ``max_constant_buffer_bytes`` on serve performance models and operators. They
    are None where the runtime does not report them (only NVIDIA reports the fields after the
    first). ``…_per_unit`` fields hold numbers per compute unit (SM): 32-bit registers, bytes of
    local memory, resident work-items, resident work-groups. Examples of forms:
    ``compute_capability`` ``9.0``, ``pci_bus_id`` ``00000000:1B:00.0``. ``power_limit_w`` is the
    limit set on the host.

    ``peak_…_spread`` is (best round - median round) / best round of a peak's measurement, 0 to 1.
    Above a few per cent, other programs have disturbed the measurement. It is None before schema
    version 4 and on devices without OpenCL.
    """

    device_id: str
    device_class: str
    device_uuid: str
    name: str
    platform: str
    driver: str
    compute_units: int
    max_work_group_size: int
    max_work_item_sizes: tuple[int, ...]
    max_clock_mhz: float | None
    global_memory_bytes: int
    max_allocation_bytes: int
    local_memory_bytes: int
    last_level_cache_bytes: int
    has_fp64: bool
    has_half: bool
    plain_work_group_size: int | None = None
    timer_step_ns: float | None = None
    peak_dram_gbps: float | None = None
    peak_l2_gbps: float | None = None
    peak_fp32_gflops: float | None = None
    peak_fp64_gflops: float | None = None
    launch_floor_ns: float | None = None
    max_constant_buffer_bytes: int | None = None
    compute_capability: str | None = None
    warp_size: int | None = None
    registers_per_unit: int | None = None
    local_memory_per_unit_bytes: int | None = None
    max_work_items_per_unit: int | None = None
    max_work_groups_per_unit: int | None = None
    memory_bus_bits: int | None = None
    max_memory_clock_mhz: float | None = None
    has_ecc: bool | None = None
    pci_bus_id: str | None = None
    power_limit_w: float | None = None
    peak_dram_spread: float | None = None
    peak_l2_spread: float | None = None
    peak_fp32_spread: float | None = None
    peak_fp64_spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """The facts of a device class on which launch plans depend; stored in ``run.json``.

    ``max_constant_buffer_bytes`` is None where a ``__constant`` buffer may be as large as any
    other, and in datasets from releases without this field.
    """

    name: str
    compute_units: int
    max_work_group_size: int
    max_work_item_sizes: tuple[int, ...]
    max_allocation_bytes: int
    global_memory_bytes: int
    local_memory_bytes: int
    plain_work_group_size: int | None = None
    max_constant_buffer_bytes: int | None = None

    @property
    def max_planned_work_group_size(self) -> int:
        """The maximum number of work-items per work-group for a kernel without a required size."""
        return min(self.plain_work_group_size or self.max_work_group_size, self.max_work_group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelReading:
    """The median time of the sentinel kernel at one moment; it shows drift of the device."""

    device_id: str
    at_us: int
    median_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """All that one finished task adds to the dataset: one ``kernels`` row and its samples.

    ``one_processor``: whether one reserved host processor started all launches; None: no launches.
    """

    task_id: str
    device_class: str
    device_id: str
    kernel: Kernel
    build: Build | None
    samples: tuple[Sample, ...]
    num_planned: int
    sentinel: tuple[SentinelReading, ...] = ()
    task_budget_s: float | None = None
    one_processor: bool | None = None

    def __post_init__(self) -> None:
        if len(self.samples) != self.num_planned:
            raise ValueError(
                f"task {self.task_id}: {self.num_planned} samples planned, not {len(self.samples)}"
            )


def launch_argument_json(argument: LaunchArgument) -> list[object]:
    """Return the JSON value that stands for one argument in a ``sample_id``.

    The contents rule is included only if it is set. So configs without such a rule keep the ids
    that earlier releases gave them.
    """
    # The dataset stores values as float64, which is not exact above 2**53. The id is computed from
    # the stored value, so that it can be checked.
    value = None if argument.value is None else float(argument.value)
    stored = int(value) if value is not None and value.is_integer() else value
    plain: list[object] = [argument.position, argument.kind.value, argument.elements, stored]
    rule = argument.contents
    return plain if rule is None else [*plain, rule.rule.value, rule.limit]

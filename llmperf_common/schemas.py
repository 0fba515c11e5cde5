"""The Arrow schemas of the dataset: every column, its type and its unit.

Owns the columns of the three tables, which readers may rely on, and the check that a table has
them. Later schema versions only add nullable columns; ``SCHEMA_VERSION`` counts the versions.
``store/tables/rows.py`` owns how records become rows.
"""

from __future__ import annotations

import pyarrow as pa

from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.features.work import WORK_KINDS

SCHEMA_VERSION = 6


def _column(
    name: str, kind: pa.DataType, meaning: str, *, unit: str = "", nullable: bool = True
) -> pa.Field:
    metadata = {"description": meaning}
    if unit:
        metadata["unit"] = unit
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


def _struct(*members: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in members])


_TEXT, _I64, _I32, _F64, _BOOL = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()
_MOMENT = pa.timestamp("us", tz="UTC")
_WORK_TYPES = {"float": _F64, "int": _I64, "bool": _BOOL}
_WORK = _struct(*((name, _WORK_TYPES[kind]) for name, kind in WORK_KINDS.items()))
_TERMS = pa.list_(_struct(("factors", pa.list_(_TEXT)), ("coefficient", _I64)))

SAMPLES = pa.schema(
    [
        _column("sample_id", _TEXT, "Content hash of the launch config: 20 hex digits.", nullable=False),
        _column("task_id", _TEXT, "The task this row was measured in.", nullable=False),
        _column("kernel_id", _TEXT, "Content hash of the kernel.", nullable=False),
        _column("device_id", _TEXT, "The device on which the launch ran.", nullable=False),
        _column("device_class", _TEXT, "Slug of the device's model.", nullable=False),
        _column("global_size", pa.list_(_I64), "NDRange, dimension 0 first; empty where no launch was planned.", unit="work-items", nullable=False),
        _column("local_size", pa.list_(_I64), "Work-group shape, dimension 0 first.", unit="work-items", nullable=False),
        _column("args", pa.list_(_struct(("position", _I32), ("kind", _TEXT), ("elements", _I64), ("value", _F64), ("contents", _TEXT), ("contents_limit", _I64))), "Arguments in position order. elements: number of elements of a buffer; value: value of a scalar. contents: how a buffer was filled: bounded or prefix if its values are indices or loop bounds; flags (whole numbers) or signed (floating-point numbers of both signs) if such values were chosen for it; null if its type alone decided. contents_limit: the magnitudes of the values lie below it.", nullable=False),
        _column("regime", _TEXT, "idle_sm, under_utilised or fully_utilised."),
        _column("input_strategy", _TEXT, "The first of memory_analysis, decoupled, simple in input_strategies.", nullable=False),
        _column("input_strategies", pa.list_(_TEXT), "Every strategy that planned this config.", nullable=False),
        _column("status", _TEXT, "'ok' or a failure code.", nullable=False),
        _column("failure_detail", _TEXT, "Evidence of a failure: compiler log or error, at most 8 KB."),
        _column("time_ns", pa.list_(_F64), "Each warm reading, in launch order.", unit="ns"),
        _column("median_ns", _F64, "Median of time_ns: the value that models predict.", unit="ns"),
        _column("min_ns", _F64, "Smallest value of time_ns.", unit="ns"),
        _column("iqr_ns", _F64, "Interquartile range of time_ns; null below four readings.", unit="ns"),
        _column("mean_ns", _F64, "Mean of time_ns.", unit="ns"),
        _column("first_ns", _F64, "Time of the first launch of this config.", unit="ns"),
        _column("cold_ns", pa.list_(_F64), "Readings that each followed a flush of the last-level cache.", unit="ns"),
        _column("launches_per_reading", _I32, "Launches averaged in one reading; more than 1 only where the timer is too coarse."),
        _column("stop_reason", _TEXT, "Why no further reading was taken."),
        _column("sm_clock_mhz", _F64, "Clock of the compute units while timing.", unit="MHz"),
        _column("temperature_c", _F64, "Device temperature while timing.", unit="degC"),
        _column("throttled", _BOOL, "Whether the device throttled while timing."),
        _column("checks", _struct(("writes_output", _BOOL), ("deterministic", _BOOL), ("input_sensitive", _BOOL), ("stationary", _BOOL), ("data_dependent", _BOOL), ("above_floor", _BOOL)), "Results of checks; null where not checked."),
        _column("work", _WORK, "Operations and accesses of the launch, counted by a virtual launch on a CPU device; null where not counted, and before version 6. Members that an earlier release did not count are null."),
        _column("work_reason", _TEXT, "Why work is null; itself null where counting was not tried."),
        _column("censor_reason", _TEXT, "Why a valid launch has no time: too_long (it took more than timing.max_launch_ms), hung, task_budget (not launched: its task had used up its time), larger_than_too_long or larger_than_hung (not launched: configs no larger in any dimension took too long or hung). Null in other rows, and before version 6."),
        _column("seed", _I64, "Seed of the generated inputs.", nullable=False),
        _column("harness_version", _I32, "Version of the measuring code. It rises when the meaning of times changes.", nullable=False),
        _column("task_attempt", _I32, "How often the task had been claimed, including this claim.", nullable=False),
        _column("worker_id", _TEXT, "Collector process: host/pid.", nullable=False),
        _column("created_at", _MOMENT, "When the row was made.", nullable=False),
    ]
)  # fmt: skip

KERNELS = pa.schema(
    [
        _column("task_id", _TEXT, "The task; the table has one row per task.", nullable=False),
        _column("kernel_id", _TEXT, "Content hash of name, source and build options.", nullable=False),
        _column("name", _TEXT, "Name of the __kernel function.", nullable=False),
        _column("source", _TEXT, "OpenCL source of the kernel; null where it may not be published."),
        _column("source_sha256", _TEXT, "SHA-256 of the source.", nullable=False),
        _column("family_id", _TEXT, "Smallest kernel_id among the kernel and its near duplicates.", nullable=False),
        _column("suite", _TEXT, "Where the kernel comes from.", nullable=False),
        _column("path", _TEXT, "Source file, relative to the corpus.", nullable=False),
        _column("dims", _I32, "Number of NDRange dimensions that the kernel uses."),
        _column("device_class", _TEXT, "Slug of the device's model.", nullable=False),
        _column("args", pa.list_(_struct(("position", _I32), ("name", _TEXT), ("kind", _TEXT), ("type_name", _TEXT), ("scalar_type", _TEXT), ("vector_width", _I32), ("element_bytes", _I32), ("access", _TEXT), ("is_const", _BOOL), ("size_role", _TEXT), ("leaves", pa.list_(_struct(("offset_bytes", _I32), ("scalar_type", _TEXT), ("count", _I32)))))), "Declared arguments in position order. size_role: the use of an integer scalar in the source; leaves: the members of a structure. is_const, size_role and leaves are null before version 6.", nullable=False),
        _column("required_local_size", pa.list_(_I64), "The attribute reqd_work_group_size; null without it, and before version 6.", unit="work-items"),
        _column("static_local_bytes", _I64, "Local memory that the source declares, without __local arguments; null before version 6.", unit="bytes"),
        _column("invented_macros", pa.list_(_TEXT), "Macro definitions in build.options that LLMPerf added because the kernel's host program would define them; null where unknown."),
        _column("task_budget_s", _F64, "limits.task_budget_s when the task was timed; null where there was no limit, and before version 6.", unit="s"),
        _column("one_processor", _BOOL, "Whether one reserved processor of the host started all launches of the task; null where nothing was launched, and before version 6."),
        _column("activity", _TEXT, "What the kernel does with its inputs: active; few_items (at most a tenth of the work-items store anything, and the others do far less work, or most of them touch no memory); nothing (no work-item stores anything, or no checked launch changed its output). Null where no row is ok or nothing is known, and before version 6."),
        _column("analysis", pa.list_(_struct(("position", _I32), ("constant", _I64), ("terms", _TERMS), ("cap_constant", _I64), ("cap_terms", _TERMS), ("validated", _BOOL), ("reason", _TEXT))), "Extent of each buffer: a polynomial of the launch sizes, capped by a second one. Where none was found, constant is null and reason says why.", nullable=False),
        _column("data_dependent", _BOOL, "Whether buffer contents decide an index or the trip count of a loop; null where not analysed."),
        _column("index_roles", pa.list_(_struct(("position", _I32), ("rule", _TEXT), ("targets", pa.list_(_struct(("position", _I32), ("constant", _I64), ("terms", _TERMS)))))), "Buffers whose values are indices or loop bounds: the rule that fills them, and the extent of each buffer they index (a polynomial that may contain value_limit)."),
        _column("analysis_failure", _TEXT, "Why the analysis of the kernel's memory accesses failed."),
        _column("overflowing_local_sizes", pa.list_(pa.list_(_I32)), "Smallest local sizes at which the kernel indexes an array of fixed size beyond its end; null where not analysed.", unit="work-items"),
        _column("inputs", _struct(("floats_free", _BOOL), ("scalars", pa.list_(_struct(("position", _I32), ("value", _TEXT)))), ("contents", _TEXT), ("contents_limit", _I64), ("num_tried", _I32), ("plain_share", _F64), ("active_share", _F64), ("reason", _TEXT)), "Inputs that keep the work-items busy. scalars: the scalars whose value is not that of their role (it is zero, low, high, side or root instead); contents: what fills buffers without an index role; num_tried: number of candidates that were run; plain_share, active_share: share of work-items active with the usual and with the chosen values; reason: why none were chosen; floats_free: whether floating-point scalars changed no index or loop count. Null where not searched for, and before version 6."),
        _column("build", _struct(("options", _TEXT), ("log", _TEXT), ("seconds", _F64), ("binary_sha256", _TEXT)), "Options, log, duration and binary hash of the compilation."),
        _column("static_features", _struct(*((name, _F64) for name in STATIC_FEATURES)), "Features counted in the source, by name; null where the source could not be parsed."),
        _column("registers", _I32, "Registers per work-item; null where the device does not report them."),
        _column("spill_bytes", _I64, "Bytes that the spill stores of a work-item write, each store counted once; null where not reported.", unit="bytes"),
        _column("shared_bytes", _I64, "Local memory per work-group without __local arguments; null where not reported.", unit="bytes"),
        _column("occupancy", _F64, "Resident work-items / work-items that a multiprocessor can hold, for work-groups of the required size or of 256 work-items, without __local arguments; null where not known."),
    ]
)  # fmt: skip

DEVICES = pa.schema(
    [
        _column("device_id", _TEXT, "Content hash of class, uuid, name and driver.", nullable=False),
        _column("device_class", _TEXT, "Slug of the device's model.", nullable=False),
        _column("device_uuid", _TEXT, "The card's UUID, or a stable substitute where it has none.", nullable=False),
        _column("name", _TEXT, "Name that the driver reports.", nullable=False),
        _column("platform", _TEXT, "OpenCL platform.", nullable=False),
        _column("driver", _TEXT, "Driver version.", nullable=False),
        _column("compute_units", _I32, "SMs of a GPU, cores of a CPU.", nullable=False),
        _column("max_work_group_size", _I64, "Device limit.", unit="work-items", nullable=False),
        _column("max_work_item_sizes", pa.list_(_I64), "Device limit by dimension.", unit="work-items", nullable=False),
        _column("max_clock_mhz", _F64, "Highest clock that the driver reports.", unit="MHz"),
        _column("global_memory_bytes", _I64, "Global memory.", unit="bytes", nullable=False),
        _column("max_allocation_bytes", _I64, "Largest single buffer.", unit="bytes", nullable=False),
        _column("local_memory_bytes", _I64, "Local memory per work-group.", unit="bytes", nullable=False),
        _column("last_level_cache_bytes", _I64, "L2 cache of a GPU, last-level cache of a CPU.", unit="bytes", nullable=False),
        _column("has_fp64", _BOOL, "Double precision supported.", nullable=False),
        _column("plain_work_group_size", _I64, "Largest work-group of a kernel without a required size.", unit="work-items"),
        _column("has_half", _BOOL, "Half precision arithmetic supported.", nullable=False),
        _column("timer_step_ns", _F64, "Smallest observed step of event times.", unit="ns"),
        _column("peak_dram_gbps", _F64, "Bandwidth that our triad kernel reached on buffers larger than the cache.", unit="GB/s"),
        _column("peak_l2_gbps", _F64, "Bandwidth that our triad kernel reached on buffers that fit into the cache.", unit="GB/s"),
        _column("peak_fp32_gflops", _F64, "Throughput that our chains of fused multiply-adds reached.", unit="GFLOP/s"),
        _column("peak_fp64_gflops", _F64, "The same in double precision; null without fp64.", unit="GFLOP/s"),
        _column("launch_floor_ns", _F64, "Event time of an empty kernel.", unit="ns"),
        _column("max_constant_buffer_bytes", _I64, "Largest __constant buffer.", unit="bytes"),
        _column("compute_capability", _TEXT, "NVIDIA's version of the architecture, such as 9.0."),
        _column("warp_size", _I32, "Work-items that run in lockstep.", unit="work-items"),
        _column("registers_per_unit", _I64, "32-bit registers per compute unit.", unit="registers"),
        _column("local_memory_per_unit_bytes", _I64, "Local memory per compute unit, shared by its work-groups.", unit="bytes"),
        _column("max_work_items_per_unit", _I32, "Maximum number of resident work-items per compute unit.", unit="work-items"),
        _column("max_work_groups_per_unit", _I32, "Maximum number of resident work-groups per compute unit.", unit="work-groups"),
        _column("memory_bus_bits", _I32, "Width of the bus to global memory.", unit="bits"),
        _column("max_memory_clock_mhz", _F64, "Highest clock of global memory.", unit="MHz"),
        _column("has_ecc", _BOOL, "Whether global memory corrects errors (ECC); on some cards ECC costs bandwidth."),
        _column("pci_bus_id", _TEXT, "PCI address of the card: domain:bus:device.function."),
        _column("power_limit_w", _F64, "Power limit set on the host when the device was added to the dataset.", unit="W"),
        _column("peak_dram_spread", _F64, "(best - median) / best over the rounds in which peak_dram_gbps was measured; null before version 4."),
        _column("peak_l2_spread", _F64, "The same for peak_l2_gbps."),
        _column("peak_fp32_spread", _F64, "The same for peak_fp32_gflops."),
        _column("peak_fp64_spread", _F64, "The same for peak_fp64_gflops; null without fp64."),
    ]
)  # fmt: skip

TABLES: dict[str, pa.Schema] = {"samples": SAMPLES, "kernels": KERNELS, "devices": DEVICES}


def missing_or_changed_columns(table: str, found: pa.Schema) -> list[str]:
    """Return how ``found`` differs from the schema; if the list is empty, a reader can use it.

    Unknown columns are allowed, because a later version may have written them. A known column must
    have its type, and be there once. Non-nullable columns must be present. Nullable columns may be
    missing, because an earlier version may have written the table.
    """
    problems = []
    for wanted in TABLES[table]:
        places = found.get_all_field_indices(wanted.name)
        types = [found.field(place).type for place in places]
        if len(places) > 1:
            problems.append(f"{table}: column {wanted.name!r} occurs {len(places)} times")
        elif not places:
            if not wanted.nullable:
                problems.append(f"{table}: column {wanted.name!r} is missing")
        elif not _is_earlier_form(types[0], wanted.type):
            problems.append(f"{table}: column {wanted.name!r} is {types[0]}, not {wanted.type}")
    return problems


def _is_earlier_form(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether ``found`` equals ``wanted``, or ``wanted`` without struct members added later."""
    if found == wanted:
        return True
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _is_earlier_form(found.value_type, wanted.value_type)
    if not (pa.types.is_struct(found) and pa.types.is_struct(wanted)):
        return False
    types = {member.name: member.type for member in wanted}
    if len({member.name for member in found}) < found.num_fields:  # a name is there twice
        return False
    return all(
        _is_earlier_form(member.type, types.get(member.name, member.type)) for member in found
    )

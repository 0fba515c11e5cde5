"""Small datasets for tests; they follow the schema, because the store's own functions write them.

``make_dataset`` writes what a collector writes: ``run.json``, an epoch, a device's shard, pairs of
shards, manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from llmperf_common import ids
from llmperf_common.builds import Build
from llmperf_common.empty_configs import empty_config
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Checks,
    Device,
    DeviceClass,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Outcome,
    Regime,
    Sample,
    SentinelReading,
    Signature,
    StopReason,
    Strategy,
    TaskResult,
    Timing,
    launch_argument_json,
)
from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem
from llmperf_common.store.manifests.epochs import take_next_epoch
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.manifests.run import RunRecord, create_or_join_run
from llmperf_common.store.tables.shard import encode_device, encode_results, write_shard

START_US = 1_700_000_000_000_000
PLAN_HASH = ids.content_id("plan", "tests")

OutcomeOf = Callable[[int, int], Outcome]
"""Maps the numbers of a kernel and of a config to the outcome."""


def make_timing(median_ns: float = 10_000.0, num_readings: int = 5) -> Timing:
    """Return a timing around ``median_ns``."""
    return Timing(
        time_ns=tuple(median_ns + 8.0 * (i - num_readings // 2) for i in range(num_readings)),
        first_ns=median_ns * 2,
        cold_ns=(median_ns * 1.5,) * 3,
        launches_per_reading=1,
        stop_reason=StopReason.RELATIVE_ERROR,
        checks=Checks(writes_output=True, above_floor=True),
        sm_clock_mhz=1980.0,
        temperature_c=41.0,
        throttled=False,
    )


def make_failure(code: FailureCode = FailureCode.HANG) -> Failure:
    """Return a failure at launch."""
    return Failure(code=code, stage=Stage.LAUNCH, detail=f"made by a test: {code.value}")


def good_outcome(kernel: int, config: int) -> Outcome:
    """Return a timing for every config: different times from 1 µs up."""
    return make_timing(1_000.0 * (1 + config) + 100.0 * kernel, num_readings=3 + config % 3)


def mixed_outcome(kernel: int, config: int) -> Outcome:
    """Return a timing for most configs; some exceed the time budget, some hang."""
    if config == 2:
        return make_failure(FailureCode.OVER_TIME_BUDGET)
    if config == 3 and kernel % 2:
        return make_failure(FailureCode.HANG)
    return good_outcome(kernel, config)


def make_kernel(number: int = 0, *, suite: str = "tests", failure: Failure | None = None) -> Kernel:
    """Return a scaled-copy kernel; each ``number`` gives a different source and id."""
    name = f"scale_{number}"
    source = (
        f"__kernel void {name}(__global const float *in, __global float *out, float factor) {{\n"
        f"  size_t i = get_global_id(0);\n  out[i] = factor * in[i] + {number}.0f;\n}}\n"
    )
    kernel_id = ids.kernel_id(name=name, source=source, build_options="-cl-std=CL2.0")
    return Kernel(
        kernel_id=kernel_id,
        name=name,
        source=source,
        source_sha256=ids.sha256_hex(source.encode()),
        path=f"{suite}/{name}.cl",
        suite=suite,
        family_id=kernel_id,
        build_options="-cl-std=CL2.0",
        signature=None if failure else make_signature(),
        failure=failure,
    )


def make_signature() -> Signature:
    """Return the signature of ``make_kernel``'s kernels."""
    buffers = [
        Argument(
            position=position,
            name=name,
            kind=ArgumentKind.GLOBAL_BUFFER,
            type_name="float *",
            scalar_type="float",
            vector_width=1,
            element_bytes=4,
            access=access,
            is_const=access is Access.READ,
        )
        for position, (name, access) in enumerate([("in", Access.READ), ("out", Access.WRITE)])
    ]
    factor = Argument(
        position=2,
        name="factor",
        kind=ArgumentKind.SCALAR,
        type_name="float",
        scalar_type="float",
        vector_width=1,
        element_bytes=4,
        access=Access.NONE,
    )
    return Signature(
        arguments=(*buffers, factor),
        dims=1,
        required_local_size=None,
        static_local_bytes=0,
        static_features={"float_ops": 2.0, "global_loads": 1.0},
    )


def make_config(kernel: Kernel, number: int, device_class: str = "replay") -> LaunchConfig:
    """Return the ``number``-th launch config of a kernel; numbers give different sample ids."""
    num_items = 64 * (1 + number)
    args = (
        LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=num_items),
        LaunchArgument(position=1, kind=ArgumentKind.GLOBAL_BUFFER, elements=num_items),
        LaunchArgument(position=2, kind=ArgumentKind.SCALAR, value=0.1 if number % 2 else 3.0),
    )
    strategies = [
        (Strategy.MEMORY_ANALYSIS,),
        (Strategy.SIMPLE, Strategy.MEMORY_ANALYSIS),
        (Strategy.DECOUPLED,),
    ]
    return LaunchConfig(
        sample_id=ids.sample_id(
            kernel_id=kernel.kernel_id,
            global_size=(num_items,),
            local_size=(64,),
            args=[launch_argument_json(argument) for argument in args],
            device_class=device_class,
        ),
        global_size=(num_items,),
        local_size=(64,),
        args=args,
        regime=list(Regime)[number % 3],
        strategies=strategies[number % 3],
        seed=number,
    )


def make_device(number: int = 0, device_class: str = "replay") -> Device:
    """Return a device without peaks."""
    content = [device_class, f"uuid-{number}"]
    return Device(
        device_id=ids.content_id("device", content),
        device_class=device_class,
        device_uuid=f"uuid-{number}",
        name="Replay",
        platform="LLMPerf tests",
        driver="1",
        compute_units=4,
        max_work_group_size=1024,
        max_work_item_sizes=(1024, 1024, 64),
        max_clock_mhz=1980.0,
        global_memory_bytes=1 << 30,
        max_allocation_bytes=1 << 28,
        local_memory_bytes=1 << 16,
        last_level_cache_bytes=1 << 20,
        has_fp64=True,
        has_half=False,
        timer_step_ns=32.0,
        peak_dram_gbps=100.0,
    )


def make_device_class(name: str = "replay") -> DeviceClass:
    """Return the device class of ``make_device``, as the plan has it."""
    return DeviceClass(
        name=name,
        compute_units=4,
        max_work_group_size=1024,
        max_work_item_sizes=(1024, 1024, 64),
        max_allocation_bytes=1 << 28,
        global_memory_bytes=1 << 30,
        local_memory_bytes=1 << 16,
    )


def make_run(
    *, plan_hash: str = PLAN_HASH, num_tasks: int = 3, device_classes: Sequence[str] = ("replay",)
) -> RunRecord:
    """Return a run record of a small plan."""
    return RunRecord(
        plan_hash=plan_hash,
        corpus_sha256=ids.sha256_hex(b"corpus"),
        config_hash="0" * 20,
        config={"plan": {"seed": 0}, "timing": {"min_readings": 5}},
        device_classes=tuple(make_device_class(name) for name in device_classes),
        num_tasks=num_tasks,
        created_at="2026-08-01T00:00:00+00:00",
    )


def make_result(
    kernel: Kernel,
    outcomes: Sequence[Outcome],
    *,
    device: Device | None = None,
    plan_hash: str = PLAN_HASH,
    attempt: int = 1,
) -> TaskResult:
    """Return a task's result, a row for each outcome, or one row if the kernel itself failed."""
    device = device or make_device()
    configs = [make_config(kernel, i, device.device_class) for i in range(len(outcomes))]
    if kernel.failure is not None:
        configs = [
            empty_config(
                kernel_id=kernel.kernel_id,
                device_class=device.device_class,
                strategy=Strategy.MEMORY_ANALYSIS,
            )
        ]
        outcomes = [kernel.failure]
    return TaskResult(
        task_id=ids.task_id(
            plan_hash=plan_hash, kernel_id=kernel.kernel_id, device_class=device.device_class
        ),
        device_class=device.device_class,
        device_id=device.device_id,
        kernel=kernel,
        build=Build(options=kernel.build_options, log="", seconds=0.1, binary_sha256="ab" * 32)
        if kernel.failure is None
        else None,
        samples=tuple(
            Sample(
                config=config,
                outcome=outcome,
                task_attempt=attempt,
                worker_id="tests/1",
                created_at_us=START_US + i,
            )
            for i, (config, outcome) in enumerate(zip(configs, outcomes, strict=True))
        ),
        num_planned=len(configs),
        sentinel=(SentinelReading(device_id=device.device_id, at_us=START_US, median_ns=5_000.0),),
    )


def write_pair(
    fs: Filesystem,
    stem: str,
    results: Sequence[TaskResult],
    *,
    plan_hash: str = PLAN_HASH,
    epoch: int = 1,
    first_token: int = 1,
) -> tuple[ShardEntry, ShardEntry]:
    """Write a pair of shards and return their entries."""
    kernels, samples = encode_results(
        stem,
        results,
        range(first_token, first_token + len(results)),
        plan_hash=plan_hash,
        epoch=epoch,
    )
    return write_shard(fs, kernels), write_shard(fs, samples)


def publish_entries(
    fs: Filesystem, entries: Sequence[ShardEntry], *, plan_hash: str = PLAN_HASH, epoch: int = 1
) -> Manifest:
    """Publish entries; publishing must succeed."""
    manifest = publish(fs, entries, plan_hash=plan_hash, epoch=epoch)
    assert isinstance(manifest, Manifest)
    return manifest


def make_dataset(
    path: Path,
    *,
    kernels: Sequence[Kernel] | int = 3,
    num_configs: int = 4,
    outcome_of: OutcomeOf = good_outcome,
    kernels_per_shard: int = 2,
    plan_hash: str = PLAN_HASH,
    device: Device | None = None,
    num_planned_tasks: int | None = None,
) -> Path:
    """Write a dataset as one collector would, and return ``path``.

    Args:
        path: the dataset's folder.
        kernels: the kernels, or the number of kernels of ``make_kernel``.
        num_configs: launch configs of each kernel.
        outcome_of: gives the outcome of each launch config; ``good_outcome`` by default.
        kernels_per_shard: tasks of a pair of shards; each pair has its own manifest version.
        plan_hash: the run's plan hash.
        device: the device that ran all tasks.
        num_planned_tasks: number of tasks of the plan; those beyond the kernels stay pending.
    """
    chosen = [make_kernel(i) for i in range(kernels)] if isinstance(kernels, int) else list(kernels)
    device = device or make_device()
    fs = PosixFilesystem(path)
    create_or_join_run(
        fs,
        make_run(
            plan_hash=plan_hash,
            num_tasks=len(chosen) if num_planned_tasks is None else num_planned_tasks,
            device_classes=[device.device_class],
        ),
    )
    epoch = take_next_epoch(fs, who="tests")
    publish_entries(fs, [], plan_hash=plan_hash, epoch=epoch)
    device_entry = write_shard(fs, encode_device(device, plan_hash=plan_hash)) if chosen else None
    for first in range(0, len(chosen), kernels_per_shard):
        results = [
            make_result(
                kernel,
                [outcome_of(number, config) for config in range(num_configs)],
                device=device,
                plan_hash=plan_hash,
            )
            for number, kernel in enumerate(chosen[first : first + kernels_per_shard], first)
        ]
        pair = write_pair(
            fs,
            f"e{epoch:06d}-{first:06d}",
            results,
            plan_hash=plan_hash,
            epoch=epoch,
            first_token=first + 1,
        )
        assert device_entry is not None
        publish_entries(fs, [*pair, device_entry], plan_hash=plan_hash, epoch=epoch)
    return path

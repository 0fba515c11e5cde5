"""A made-up dataset whose times follow a known law: tables that follow the schema, no device.

time = floor + work-items x (bytes / bandwidth + operations / throughput) x kernel's own factor x
penalty of the local size, times noise. Every global size is launched at several local sizes, so
there is a best one to choose.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from llmperf_common import ids
from llmperf_common.builds import Build
from llmperf_common.empty_configs import empty_config
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.regimes import regime_of
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Checks,
    Device,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Sample,
    Signature,
    StopReason,
    Strategy,
    TaskResult,
    Timing,
    launch_argument_json,
)
from llmperf_common.store.tables.rows import devices_table, kernels_table, samples_table
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData, data_from_tables
from trainer.life.summary import RunSummary
from trainer.life.train import train

FLOOR_NS = 4000.0
BANDWIDTH_BYTES_PER_NS = 400.0
OPS_PER_NS = 2000.0
NOISE_LOG2 = 0.03

DEVICE = Device(
    device_id="d" * 20,
    device_class="synth",
    device_uuid="uuid-0",
    name="Synthetic",
    platform="none",
    driver="1",
    compute_units=16,
    max_work_group_size=1024,
    max_work_item_sizes=(1024, 1024, 64),
    max_clock_mhz=1500.0,
    global_memory_bytes=2**34,
    max_allocation_bytes=2**32,
    local_memory_bytes=49152,
    last_level_cache_bytes=2**22,
    has_fp64=True,
    has_half=False,
    peak_dram_gbps=BANDWIDTH_BYTES_PER_NS,
    peak_l2_gbps=4 * BANDWIDTH_BYTES_PER_NS,
    peak_fp32_gflops=OPS_PER_NS,
    peak_fp64_gflops=None,
    launch_floor_ns=FLOOR_NS,
)


def take_out(folder: Path, name: str) -> None:
    """Make a run look as if an earlier release, which did not write the file ``name``, made it."""
    (folder / name).unlink()
    marker = folder / "published.json"
    content = json.loads(marker.read_text())
    del content["files"][name]
    marker.write_text(json.dumps(content))


def buffer_argument(position: int, name: str, access: Access, element_bytes: int = 4) -> Argument:
    return Argument(
        position=position,
        name=name,
        kind=ArgumentKind.GLOBAL_BUFFER,
        type_name="float*",
        scalar_type="float",
        vector_width=element_bytes // 4,
        element_bytes=element_bytes,
        access=access,
    )


def scalar_argument(position: int, name: str, scalar_type: str = "int") -> Argument:
    return Argument(
        position=position,
        name=name,
        kind=ArgumentKind.SCALAR,
        type_name=scalar_type,
        scalar_type=scalar_type,
        vector_width=1,
        element_bytes=4,
        access=Access.NONE,
    )


def local_argument(position: int, name: str) -> Argument:
    return Argument(
        position=position,
        name=name,
        kind=ArgumentKind.LOCAL_BUFFER,
        type_name="float*",
        scalar_type="float",
        vector_width=1,
        element_bytes=4,
        access=Access.READ_WRITE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticKernel:
    """A kernel and the hidden numbers that determine its times."""

    kernel: Kernel
    float_ops: float
    global_bytes: float
    factor: float

    def time_ns(self, global_size: tuple[int, ...], local_size: tuple[int, ...]) -> float:
        items, group = float(np.prod(global_size)), float(np.prod(local_size))
        work = self.global_bytes / BANDWIDTH_BYTES_PER_NS + self.float_ops / OPS_PER_NS
        # Small groups waste lanes, large groups waste residency; 128 is best.
        penalty = 1.0 + 0.35 * abs(np.log2(group) - 7.0)
        return FLOOR_NS + items * work * self.factor * penalty


CALLS = [
    "sin",
    "cos",
    "tan",
    "exp",
    "log",
    "sqrt",
    "fabs",
    "floor",
    "ceil",
    "round",
    "trunc",
    "rint",
    "exp2",
    "log2",
    "exp10",
    "log10",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "cbrt",
    "rsqrt",
    "erf",
    "erfc",
    "expm1",
    "log1p",
    "sinpi",
    "cospi",
]


def make_source(name: str, number: int) -> str:
    """Return a source of twenty random call chains, no near duplicate of another number's."""
    generator = np.random.default_rng([number, 1])
    chains = generator.choice(CALLS, (20, 4))
    steps = "".join(f"  a += {'('.join(calls)}(x[i]))));\n" for calls in chains.tolist())
    return (
        f"__kernel void {name}(__global const float *x, __global float *y, int n) {{\n"
        f"  int i = get_global_id(0);\n  float a = 0;\n{steps}  if (i < n) y[i] = a;\n}}\n"
    )


def make_kernel(number: int, generator: np.random.Generator) -> SyntheticKernel:
    float_ops = float(2 ** generator.uniform(1, 10))
    loads = int(generator.integers(1, 6))
    features = dict.fromkeys(STATIC_FEATURES, 0.0) | {
        "float_ops": min(float_ops, 200.0),
        "weighted_float_ops": float_ops,
        "int_ops": float(generator.integers(1, 10)),
        "weighted_int_ops": float(generator.integers(1, 10)),
        "global_loads": float(loads),
        "global_stores": 1.0,
        "weighted_global_accesses": float(loads + 1),
        "weighted_global_bytes": 4.0 * (loads + 1),
        "unit_stride_accesses": float(loads + 1),
        "num_global_buffers": 2.0,
        "num_scalars": 1.0,
        "source_tokens": float(generator.integers(50, 400)),
        "dims": 1.0,
    }
    name = f"kernel_{number}"
    source = make_source(name, number)
    identity = ids.kernel_id(name=name, source=source, build_options="")
    kernel = Kernel(
        kernel_id=identity,
        name=name,
        source=source,
        source_sha256=ids.sha256_hex(source.encode()),
        path=f"{name}.cl",
        suite="rodinia/bfs" if number == 0 else "own",
        family_id=identity,
        build_options="",
        signature=Signature(
            arguments=(
                buffer_argument(0, "x", Access.READ),
                buffer_argument(1, "y", Access.WRITE),
                scalar_argument(2, "n"),
            ),
            dims=1,
            required_local_size=None,
            static_local_bytes=0,
            static_features=features,
        ),
        failure=None,
    )
    return SyntheticKernel(
        kernel=kernel,
        float_ops=float_ops,
        global_bytes=4.0 * (loads + 1),
        factor=float(2 ** generator.normal(0, 0.15)),
    )


def make_launch(
    kernel: Kernel, global_size: tuple[int, ...], local_size: tuple[int, ...]
) -> LaunchConfig:
    items = int(np.prod(global_size))
    args = (
        LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=items),
        LaunchArgument(position=1, kind=ArgumentKind.GLOBAL_BUFFER, elements=items),
        LaunchArgument(position=2, kind=ArgumentKind.SCALAR, value=items),
    )
    groups = items // int(np.prod(local_size))
    return LaunchConfig(
        sample_id=ids.sample_id(
            kernel_id=kernel.kernel_id,
            global_size=global_size,
            local_size=local_size,
            args=[launch_argument_json(item) for item in args],
            device_class=DEVICE.device_class,
        ),
        global_size=global_size,
        local_size=local_size,
        args=args,
        regime=regime_of(groups, DEVICE.compute_units),
        strategies=(Strategy.SIMPLE,),
        seed=0,
    )


def make_sample(config: LaunchConfig, outcome: Timing | Failure) -> Sample:
    return Sample(
        config=config, outcome=outcome, task_attempt=1, worker_id="host/1", created_at_us=0
    )


def make_timing(time_ns: float, generator: np.random.Generator, per_reading: int = 1) -> Timing:
    readings = time_ns * 2 ** generator.normal(0, NOISE_LOG2, 5)
    return Timing(
        time_ns=tuple(map(float, readings)),
        first_ns=float(readings[0]),
        cold_ns=(),
        launches_per_reading=per_reading,
        stop_reason=StopReason.FIXED,
        checks=Checks(),
    )


def make_task(
    synthetic: SyntheticKernel, num_configs: int, generator: np.random.Generator
) -> TaskResult:
    kernel = synthetic.kernel
    locals_ = (32, 64, 128, 256, 512)
    samples = []
    while len(samples) < num_configs:
        items = int(2 ** generator.integers(12, 25))
        for local in generator.choice(locals_, size=4, replace=False).tolist():
            config = make_launch(kernel, (items,), (local,))
            if any(config.sample_id == other.config.sample_id for other in samples):
                continue
            time_ns = synthetic.time_ns((items,), (local,))
            samples.append(make_sample(config, make_timing(time_ns, generator)))
    samples = samples[:num_configs]
    # As in a real task: a censored launch, a batched launch and a fault.
    long, batched, fault = samples[0], samples[1], samples[2]
    over = Failure(code=FailureCode.OVER_TIME_BUDGET, stage=Stage.LAUNCH, detail="250 ms")
    samples[0] = make_sample(long.config, over)
    config = batched.config
    time_ns = synthetic.time_ns(config.global_size, config.local_size)
    samples[1] = make_sample(config, make_timing(time_ns, generator, per_reading=8))
    died = Failure(code=FailureCode.DEVICE_FAULT, stage=Stage.LAUNCH, detail="died")
    samples[2] = make_sample(fault.config, died)
    return TaskResult(
        task_id=ids.content_id("task", kernel.kernel_id),
        device_class=DEVICE.device_class,
        device_id=DEVICE.device_id,
        kernel=kernel,
        build=Build(options="", log="", seconds=0.1, binary_sha256=None),
        samples=tuple(samples),
        num_planned=num_configs,
    )


def failed_task(number: int) -> TaskResult:
    """Return the result of a kernel that failed before any launch config: one row, no sizes."""
    source = f"broken {number}"
    identity = ids.kernel_id(name="broken", source=source, build_options="")
    failure = Failure(code=FailureCode.BUILD_ERROR, stage=Stage.SIGNATURE, detail="syntax")
    kernel = Kernel(
        kernel_id=identity,
        name="broken",
        source=source,
        source_sha256=ids.sha256_hex(source.encode()),
        path="broken.cl",
        suite="own",
        family_id=identity,
        build_options="",
        signature=None,
        failure=failure,
    )
    config = empty_config(
        kernel_id=identity, device_class=DEVICE.device_class, strategy=Strategy.SIMPLE
    )
    return TaskResult(
        task_id=ids.content_id("task", identity),
        device_class=DEVICE.device_class,
        device_id=DEVICE.device_id,
        kernel=kernel,
        build=None,
        samples=(make_sample(config, failure),),
        num_planned=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticDataset:
    """The three tables and the kernels that they describe."""

    kernels: tuple[SyntheticKernel, ...]
    tasks: tuple[TaskResult, ...]
    samples_table: pa.Table
    kernels_table: pa.Table
    devices_table: pa.Table

    def data(self) -> TrainingData:
        return data_from_tables(
            self.samples_table,
            self.kernels_table,
            self.devices_table,
            identity={"plan_hashes": ["synthetic"], "manifest_version": 1},
        )


def make_dataset(
    *, num_kernels: int = 40, num_configs: int = 40, seed: int = 0, first: int = 0
) -> SyntheticDataset:
    generator = np.random.default_rng(seed)
    kernels = tuple(make_kernel(first + number, generator) for number in range(num_kernels))
    tasks = [make_task(item, num_configs, generator) for item in kernels]
    tasks.append(failed_task(first))
    return SyntheticDataset(
        kernels=kernels,
        tasks=tuple(tasks),
        samples_table=samples_table(tasks),
        kernels_table=kernels_table(tasks),
        devices_table=devices_table([DEVICE]),
    )


QUICK = (
    "train.num_threads=1",
    "gbdt.tune=false",
    "gbdt.num_rounds=250",
    "gbdt.num_leaves=15",
    "judge.bootstrap_replicates=50",
)
"""Overrides with which a training takes about a second."""


@functools.cache
def trained() -> tuple[SyntheticDataset, TrainingData, RunSummary]:
    """Train one gbdt run for all tests that only read a run."""
    folder = Path(tempfile.mkdtemp(prefix="llmperf-test-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    dataset = make_dataset()
    data = dataset.data()
    config = load_train_config("gbdt", overrides=QUICK)
    return dataset, data, train(data, config, folder / "run", lambda _line: None)

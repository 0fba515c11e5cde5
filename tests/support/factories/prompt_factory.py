"""Launches with all that prompts must show: macros, typedefs, local and steered buffers, 3-D."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmperf.prediction.analysing import Known
from llmperf.prediction.filling import planned_filler
from llmperf_common import ids
from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.builds import Build
from llmperf_common.features.table_columns import kernel_rows
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
    TaskResult,
    launch_argument_json,
)
from llmperf_common.store.tables.rows import kernels_table, samples_table
from tests.support.factories.synthetic_dataset import DEVICE, make_sample, make_timing
from trainer.interface import Rows
from trainer.prediction.predicted_times import launch_rows
from trainer.prediction.request import PredictRequest

G, L, C, S = (
    ArgumentKind.GLOBAL_BUFFER,
    ArgumentKind.LOCAL_BUFFER,
    ArgumentKind.CONSTANT_BUFFER,
    ArgumentKind.SCALAR,
)
NO_ACCESS = {S: Access.NONE}


def argument(
    position: int,
    name: str,
    kind: ArgumentKind,
    type_name: str,
    *,
    scalar_type: str = "",
    access: Access = Access.READ,
    width: int = 1,
    element_bytes: int = 4,
) -> Argument:
    return Argument(
        position=position,
        name=name,
        kind=kind,
        type_name=type_name,
        scalar_type=scalar_type or type_name.rstrip("*"),
        vector_width=width,
        element_bytes=element_bytes,
        access=NO_ACCESS.get(kind, access),
    )


def kernel(
    name: str, source: str, arguments: Sequence[Argument], *, build_options: str = "", dims: int = 1
) -> Kernel:
    identity = ids.kernel_id(name=name, source=source, build_options=build_options)
    return Kernel(
        kernel_id=identity,
        name=name,
        source=source,
        source_sha256=ids.sha256_hex(source.encode()),
        path=f"{name}.cl",
        suite="own",
        family_id=identity,
        build_options=build_options,
        signature=Signature(
            arguments=tuple(arguments),
            dims=dims,
            required_local_size=None,
            static_local_bytes=0,
            static_features={},
        ),
        failure=None,
    )


SPARSE = kernel(
    "sparse",
    """// one row a work-item
typedef float real;
__kernel void sparse(__global const int *rows, __constant real *x,
                     __local float *cache, float scale, long n) {

    /* sum */
    if (get_global_id(0) < n) cache[get_local_id(0)] = x[rows[get_global_id(0)]] * scale * WIDTH;
}
""",
    [
        argument(0, "rows", G, "int*"),
        argument(1, "x", C, "real*", scalar_type="float"),
        argument(2, "cache", L, "float*", access=Access.READ_WRITE),
        argument(3, "scale", S, "float"),
        argument(4, "n", S, "long", element_bytes=8),
    ],
    build_options="-DWIDTH=16 -DFAST -I /somewhere -cl-fast-relaxed-math",
)

PLAIN = kernel(
    "plain",
    "kernel void plain(global float4* a) {\n  a[get_global_id(0)] += 1.0f;\n}",
    [argument(0, "a", G, "float4*", scalar_type="float", width=4, element_bytes=16)],
)


def launch(
    of: Kernel,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...],
    amounts: Sequence[float],
    limits: dict[int, int] | None = None,
) -> LaunchConfig:
    """Return a launch with amounts by position; ``limits`` are those of steering buffers."""
    assert of.signature is not None
    args = tuple(
        LaunchArgument(
            position=declared.position,
            kind=declared.kind,
            elements=int(amount) if declared.kind.is_buffer else None,
            value=None if declared.kind.is_buffer else amount,
            contents=Contents(rule=ContentsRule.PREFIX, limit=limits[declared.position])
            if limits and declared.position in limits
            else None,
        )
        for declared, amount in zip(of.signature.arguments, amounts, strict=True)
    )
    return LaunchConfig(
        sample_id=ids.sample_id(
            kernel_id=of.kernel_id,
            global_size=global_size,
            local_size=local_size,
            args=[launch_argument_json(item) for item in args],
            device_class=DEVICE.device_class,
        ),
        global_size=global_size,
        local_size=local_size,
        args=args,
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=0,
    )


def dataset_rows(launches: Sequence[tuple[Kernel, Sequence[LaunchConfig]]]) -> Rows:
    """Return the launches as rows of a dataset, through the store's own tables."""
    generator = np.random.default_rng(0)
    tasks = [
        TaskResult(
            task_id=ids.content_id("task", f"{number}"),
            device_class=DEVICE.device_class,
            device_id=DEVICE.device_id,
            kernel=of,
            build=Build(options=of.build_options, log="", seconds=0.1, binary_sha256=None),
            samples=tuple(make_sample(one, make_timing(1e4, generator)) for one in configs),
            num_planned=len(configs),
        )
        for number, (of, configs) in enumerate(launches)
    ]
    samples, kernels = samples_table(tasks), kernels_table(tasks)
    return Rows(
        features=np.zeros((len(samples), 0)),
        samples=samples,
        kernels=kernels,
        kernel_row=kernel_rows(samples, kernels),
    )


def prediction_rows(of: Kernel, configs: Sequence[LaunchConfig]) -> Rows:
    """Return launches of one kernel as the rows that ``predict`` makes."""
    assert of.signature is not None
    request = PredictRequest(
        kernel=of.name,
        signature=of.signature,
        global_size=configs[0].global_size,
        local_size=configs[0].local_size,
        filler=planned_filler(of, DEVICE, {}, Known(analysis=None, said="")),
        source=of.source,
        build_options=of.build_options,
    )
    return launch_rows(request, configs, DEVICE.device_class, np.zeros((len(configs), 0)))


LAUNCHES = [
    launch(SPARSE, (1024,), (64,), [1025, 5000, 64, 0.5, 1024], {0: 4999}),
    launch(SPARSE, (2**31, 6), (256, 2), [2**33, 7, 256, -1e-5, -3]),
    launch(SPARSE, (96, 10, 4), (32, 5, 1), [1, 2, 3, 1e300, 2**40]),
]

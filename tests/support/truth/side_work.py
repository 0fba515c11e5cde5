"""Work of a launch of one of kernels/, by its side file's formulas, and launch configs to compare.

Owns the evaluation of ``[kernel.work]``. The formulas are Python, over ``g0`` … (global sizes),
``l0`` … (local sizes), ``groups0`` …, the integer scalars, and the contents of buffers by name, as
the content rule makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import (
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Strategy,
)
from tests.support.truth.side_files import Launch, SideKernel, extent_elements
from workers.plan.inputs import SCALAR_TYPES, reference_bytes

FIELDS = {
    "loads": "global_loads",
    "load_bytes": "global_load_bytes",
    "stores": "global_stores",
    "store_bytes": "global_store_bytes",
    "fp32": "fp32_ops",
    "fp64": "fp64_ops",
    "barriers": "barriers",
    "atomics": "global_atomics",
    "active": "active_items",
}
"""Maps keys of the side file to fields of ``Work``. A key that is missing in a side file means 0,
unless ``_DATA_DECIDES`` has it."""
_DATA_DECIDES = {
    "mandelbrot": {"fp32"},
    "peak_cmpxchg": {"atomics"},
    "ray_spheres": {"loads", "load_bytes"},
}
"""Keys by kernel whose values depend on a race, or need a simulation as long as the kernel."""
_ENTRIES_A_ROW = 8


def config_of(kernel: Kernel, side: SideKernel, launch: Launch, *, seed: int) -> LaunchConfig:
    """Return a launch config with the side file's buffer lengths and with indices inside them."""
    assert kernel.signature is not None
    items = math.prod(launch.global_size)
    args = []
    for argument in kernel.signature.arguments:
        if argument.kind is ArgumentKind.SCALAR:
            value = launch.scalars.get(argument.name, 1.0)
            args.append(LaunchArgument(position=argument.position, kind=argument.kind, value=value))
            continue
        extent = next(one for one in side.extents if one["position"] == argument.position)
        elements = extent_elements(extent, launch.sizes)
        if elements is None:
            elements = launch.scalars.get("num_offsets", items)
            if argument.name in {"cols", "vals", "neighbours"}:
                elements *= _ENTRIES_A_ROW
        contents = None
        if argument.name == "row_offsets":
            contents = Contents(rule=ContentsRule.PREFIX, limit=elements * _ENTRIES_A_ROW)
        elif argument.name in {"cols", "neighbours", "rows", "source", "target"}:
            contents = Contents(rule=ContentsRule.BOUNDED, limit=max(1, items))
        args.append(
            LaunchArgument(
                position=argument.position,
                kind=argument.kind,
                elements=max(1, elements),
                contents=contents,
            )
        )
    return LaunchConfig(
        sample_id=f"{side.name}-{seed}",
        global_size=launch.global_size,
        local_size=launch.local_size,
        args=tuple(args),
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=seed,
    )


def true_work(
    kernel: Kernel, side: SideKernel, launch: Launch, config: LaunchConfig
) -> dict[str, int]:
    """Return the side file's counts of a launch, by the fields of ``Work``."""
    table = side.table["work"]
    known = names_of(kernel, side, launch, config)
    unsaid = _DATA_DECIDES.get(side.name, set())
    return {
        field: int(eval(table.get(key, "0"), known))
        for key, field in FIELDS.items()
        if key not in unsaid
    }


def names_of(
    kernel: Kernel, side: SideKernel, launch: Launch, config: LaunchConfig
) -> dict[str, Any]:
    """Return the names for a side file's formulas: sizes, scalars, contents, parts of ``where``."""
    assert kernel.signature is not None
    table = side.table["work"]
    known: dict[str, Any] = {"__builtins__": {}, **_FUNCTIONS, "scalars": launch.scalars}
    for name, value in launch.sizes.items():
        known[_SHORT.get(name, name)] = value
    formulas = [*table.get("where", {}).values(), *(table.get(key, "") for key in FIELDS)]
    formulas += [text for one in table.get("access", ()) for text in one.values()]
    text = " ".join(map(str, formulas))
    for argument, launched in zip(kernel.signature.arguments, config.args, strict=True):
        if argument.name in text and argument.kind.is_buffer and launched.elements is not None:
            known[argument.name] = _contents(argument, launched, config.seed)
    for name, formula in table.get("where", {}).items():
        known[name] = eval(formula, known)
    return known


def _contents(argument: Argument, launched: LaunchArgument, seed: int) -> Any:
    assert launched.elements is not None
    raw = reference_bytes(
        argument, elements=launched.elements, seed=seed, contents=launched.contents
    )
    if argument.leaves:
        return raw
    return raw.view(SCALAR_TYPES[argument.scalar_type].dtype).tolist()


def _floats(
    raw: npt.NDArray[np.uint8], stride: int, offset: int, count: int
) -> npt.NDArray[np.float32]:
    """Return ``count`` consecutive floats from ``offset`` of each structure."""
    rows = raw.reshape(-1, stride)[:, offset : offset + 4 * count]
    return np.ascontiguousarray(rows).view(np.float32)


def _doublings(lanes: int) -> int:
    """Return how often 1 must be doubled to reach ``lanes``."""
    return (lanes - 1).bit_length()


_FUNCTIONS: Mapping[str, Any] = {
    "min": min, "max": max, "sum": sum, "range": range, "len": len, "any": any, "int": int,
    "floats": _floats, "doublings": _doublings,
}  # fmt: skip
_SHORT = {
    f"{long}_{axis}": f"{short}{axis}"
    for long, short in (("global_size", "g"), ("local_size", "l"), ("num_groups", "groups"))
    for axis in range(3)
}

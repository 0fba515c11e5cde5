"""Addresses that a launch of one of kernels/ touches, by ``[[kernel.work.access]]`` of a side file.

Owns the evaluation. Each access is written by hand as a formula of ids. Lanes, warps and groups are
found by a loop over all work-items.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

from llmperf_common.records import Kernel, LaunchConfig
from tests.support.truth.side_files import Launch, SideKernel
from tests.support.truth.side_work import names_of

WARP, SECTOR, LINE = 32, 32, 128


def has_accesses(side: SideKernel) -> bool:
    """Return whether the side file has the addresses of all accesses."""
    return bool(side.table["work"].get("access"))


def true_touches(
    kernel: Kernel, side: SideKernel, launch: Launch, config: LaunchConfig
) -> dict[str, float]:
    """Return the counts of what work-items touch together, by the fields of ``Work``."""
    table = side.table["work"]
    known = names_of(kernel, side, launch, config)
    accesses = [
        (number, one["use"], one["buffer"], one["bytes"], *(
            compile(one.get(key, default), key, "eval")
            for key, default in (("at", ""), ("when", "True"), ("turns", "range(1)"))
        ))
        for number, one in enumerate(table["access"])
    ]  # fmt: skip
    found: Counter[str] = Counter()
    met: Counter[tuple[str, int]] = Counter()
    for group, lanes in _groups(launch):
        touched: set[tuple[str, int]] = set()
        for warp in _warps(lanes):
            together: dict[tuple[int, int], list[int]] = {}
            for ids in warp:
                names = known | group | ids
                for number, _, _, _, at, when, turns in accesses:
                    for turn in eval(turns, names):
                        names["t"] = turn
                        if eval(when, names):
                            together.setdefault((number, turn), []).append(int(eval(at, names)))
            for (number, _), places in together.items():
                _, use, buffer, size, *_ = accesses[number]
                found[f"global_{use}_requests"] += 1
                touched |= {(buffer, at + byte) for at in places for byte in range(size)}
                if use == "atomic":
                    found["global_atomic_addresses"] += len(set(places))
                    met.update((buffer, at) for at in places)
                    continue
                for what, width in (("sectors", SECTOR), ("lines", LINE)):
                    blocks = {(at + byte) // width for at in places for byte in (0, size - 1)}
                    found[f"global_{use}_{what}"] += len(blocks)
        found["group_bytes"] += len(touched)
    names = [
        f"global_{use}_{what}"
        for use in ("load", "store")
        for what in ("requests", "sectors", "lines")
    ]
    names += ["global_atomic_requests", "global_atomic_addresses", "group_bytes"]
    return {name: found[name] for name in names} | {
        "global_atomic_peak": max(met.values(), default=0)
    }


def _groups(launch: Launch) -> Any:
    pad = (1,) * (3 - len(launch.global_size))
    local = (*launch.local_size, *pad)
    sides = [n // m for n, m in zip((*launch.global_size, *pad), local, strict=True)]
    for gz, gy, gx in itertools.product(*(range(n) for n in reversed(sides))):
        lanes = []
        for lane in range(math.prod(local)):
            lx, ly, lz = lane % local[0], lane // local[0] % local[1], lane // local[0] // local[1]
            ids = {"lx": lx, "ly": ly, "lz": lz}
            ids |= {"x": gx * local[0] + lx, "y": gy * local[1] + ly, "z": gz * local[2] + lz}
            lanes.append(ids)
        yield {"gx": gx, "gy": gy, "gz": gz}, lanes


def _warps(lanes: list[dict[str, int]]) -> list[list[dict[str, int]]]:
    return [lanes[start : start + WARP] for start in range(0, len(lanes), WARP)]

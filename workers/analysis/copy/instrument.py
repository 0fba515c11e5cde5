"""Make the instrumented copy of a kernel: the same code, which also records its accesses.

Owns the kernel's parameters and the context that is passed to helpers. ``source_copy.py`` decides
what stays of the file, ``walk.py`` rewrites function bodies, ``hooks.cl`` has the hooks.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from workers.analysis.copy.rewriter import (
    CONSTANT_BYTES,
    CONTEXT,
    GLOBAL_BYTES,
    LOCAL_BYTES,
    WIDEST_PLAIN_BYTES,
    Rewriter,
    UnresolvedError,
)
from workers.analysis.copy.source_copy import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    NO_BARRIERS,
    SourceCopy,
    body_of,
    line_of,
    offset_of,
    offsets,
    parameters_of,
    pointer_space,
    with_hooks,
)
from workers.analysis.copy.walk import FunctionWalk
from workers.device.interface import Instrumented
from workers.source.clang.cursor import deep_recursion

KERNEL_NAME = "lp_instrumented"
SLACK_BYTES = 256
"""Spare bytes after each pointer argument's memory, for a wide access that begins near its end."""
HEAD_WORDS = 3
"""Words of a launch's record before the words of its pointers: loop iterations, flags, trace."""
_GLOBAL_MASK, _CONSTANT_MASK, _LOCAL_MASK = "LP_GLOBAL_MASK", "LP_CONSTANT_MASK", "LP_LOCAL_MASK"
_MASKS = {GLOBAL: _GLOBAL_MASK, LOCAL: _LOCAL_MASK, CONSTANT: _CONSTANT_MASK}


def instrument(source: str, name: str, build_options: str = "") -> Instrumented:
    """Return the instrumented copy of the kernel ``name`` of a source.

    Raises:
        UnresolvedError: Some code cannot be followed; the message says what and where.
    """
    try:
        with deep_recursion():
            return _instrumented(SourceCopy(source, name, build_options))
    except RecursionError:
        raise UnresolvedError("an expression is nested too deeply") from None


def _instrumented(copy: SourceCopy) -> Instrumented:
    kernel, reachable = copy.prepare()
    positions = _kernel_header(copy, kernel)
    rewriter = Rewriter(edits=copy.edits, sites=copy.sites, types=copy.types, line_of=line_of)
    walk = FunctionWalk(rewriter, copy.bodies.__contains__, weighs_turns=True)
    for body, is_kernel in copy.defined(reachable):
        walk.rewrite(body, is_kernel=is_kernel)
    hooks = resources.files("workers.analysis.copy").joinpath("hooks.cl").read_text()
    if len(copy.sites.sites) >= 2**16:
        raise UnresolvedError("more than 65,535 accesses")
    head = _head(copy, len(positions))
    if copy.has_costly_barriers:
        head += NO_BARRIERS
    return Instrumented(
        source=with_hooks(copy, head, hooks),
        expanded=copy.text,
        sites=tuple(copy.sites.sites),
        positions=positions,
        has_arrays=copy.sites.has_arrays,
        has_uncut_loops=copy.sites.has_uncut_loops,
        lacks_barriers=copy.has_costly_barriers,
    )


def _head(copy: SourceCopy, num_pointers: int) -> str:
    sites = copy.sites
    sizes = {
        "BUFFERS": f"{num_pointers + 1}",
        "SPARE": f"{num_pointers}",
        "TAGS": f"{num_pointers + 1 + len(sites.variables)}",
        "HEAD": f"{HEAD_WORDS}",
        "GLOBAL_MASK": f"{GLOBAL_BYTES - 1}ul",
        "CONSTANT_MASK": f"{CONSTANT_BYTES - 1}ul",
        "LOCAL_MASK": f"{LOCAL_BYTES - 1}ul",
        "TABLE_BYTES": f"{8 * row_words(num_pointers)}",
        "SLACK_BYTES": f"{SLACK_BYTES}ul",
        "WIDEST": f"{-(-sites.widest_bytes // WIDEST_PLAIN_BYTES)}",
    }
    return "".join(f"#define LP_{name} {value}\n" for name, value in sizes.items())


def _kernel_header(copy: SourceCopy, kernel: Any) -> tuple[int, ...]:
    """Rename the kernel and its pointers, add the table, and put context and tags into the body."""
    positions: list[int] = []
    lines = [
        f" lp_ctx lp_own; lp_ctx *{CONTEXT} = &lp_own; lp_own.table = lp_table + lp_slot;"
        " lp_own.most_turns = lp_most_turns; lp_own.turns = 0; lp_own.trace = 0;"
        f" lp_begin({CONTEXT});"
    ]
    for position, parameter in enumerate(parameters_of(kernel)):
        space = pointer_space(parameter)
        if space is None or not parameter.spelling:
            continue
        row = len(positions)
        positions.append(position)
        at = offset_of(parameter.location)
        copy.edits.rename(at, parameter.spelling, f"lp_a{position}")
        lines.append(
            f" lp_own.base[{row}] = (ulong)lp_a{position};"
            f" lp_own.mask[{row}] = {_MASKS.get(space, _GLOBAL_MASK)};"
            f" __typeof__(lp_a{position}) {parameter.spelling} ="
            f" (__typeof__(lp_a{position}))LP_TAG({row});"
        )
    lines.append(
        f" lp_own.base[{len(positions)}] = (ulong)(lp_table + lp_slot) + LP_TABLE_BYTES;"
        f" lp_own.mask[{len(positions)}] = 0;"
    )
    copy.rename_kernel(
        kernel, KERNEL_NAME, "__global ulong *lp_table, ulong lp_slot, ulong lp_most_turns"
    )
    copy.edits.insert(offsets(body_of(kernel).extent)[0] + 1, "".join(lines))
    return tuple(positions)


def row_words(num_pointers: int) -> int:
    """Return the 64-bit words that one launch records: the head, and two words per pointer."""
    return HEAD_WORDS + 2 * num_pointers

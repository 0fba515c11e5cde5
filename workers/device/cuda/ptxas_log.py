"""The verbose log of NVIDIA's PTX compiler: spills, stack and registers of a kernel.

Owns the reading of this log. Its form is the same from ``ptxas -v``, from the driver's compiler
(``CU_JIT_LOG_VERBOSE``) and from OpenCL's compiler (``-cl-nv-verbose``). No other source reports
spills.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REGISTERS = re.compile(r"Used (\d+) registers")
_PROPERTIES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerNotes:
    """The numbers for one kernel, per work-item; None if the log does not give them."""

    stack_bytes: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    registers: int | None


def notes_on(log: str, kernel_name: str) -> CompilerNotes:
    """Return the log's numbers for one kernel; all None if the log does not name it.

    >>> notes_on('''ptxas info    : Compiling entry function 'k' for 'sm_90'
    ... ptxas info    : Function properties for k
    ...     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
    ... ptxas info    : Used 32 registers, 376 bytes cmem[0]''', "k").spill_store_bytes
    12
    """
    name = re.escape(kernel_name)
    own = _section(log, rf"Compiling entry function '{name}'", r"Compiling entry function ")
    properties = _PROPERTIES.search(
        _section(own, rf"Function properties for '?{name}'?(?![\w$])", r"Function properties for ")
    )
    registers = _REGISTERS.search(own)
    stack, stores, loads = properties.groups() if properties else (None, None, None)
    return CompilerNotes(
        stack_bytes=_number(stack),
        spill_store_bytes=_number(stores),
        spill_load_bytes=_number(loads),
        registers=_number(registers[1]) if registers else None,
    )


def _section(log: str, begin: str, next_begin: str) -> str:
    """Return the text after ``begin`` and before the next ``next_begin``; "" if there is none."""
    found = re.search(begin, log)
    return re.split(next_begin, log[found.end() :])[0] if found else ""


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)

"""The parse child: one JSON line in (source and options), one JSON line out (kernels or a failure).

Owns the process boundary around libclang, which can crash on hostile sources and cannot be interrupted;
its parent is ``parse_pool.py``. Loads neither Arrow nor pydantic: it must start in a fraction of a second.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
import traceback

from llmperf_common.failures import Failure, FailureCode, Stage
from workers.sandbox.address_space import bound_growth, lower_limit
from workers.source.front_end import ReadKernel, read_kernels

_PR_SET_PDEATHSIG = 1
_RECURSION_LIMIT = 10_000
"""Depth of Python calls: since 3.11 they need no C stack, so deep expressions only need the
permission."""

_MAX_BYTES = 2 * 2**30
"""Bytes of address space beyond those at the start. The largest source allowed, 8 MiB of numbers,
takes 1.4 GiB."""


def answer(source: str, build_options: str) -> str:
    """Return the answer to one job as a line of JSON."""
    try:
        found = read_kernels(source, build_options)
    except MemoryError:
        found = Failure(
            code=FailureCode.COMPILER_CRASH,
            stage=Stage.SIGNATURE,
            detail=f"the parser needs more than {_MAX_BYTES // 2**20} MiB for this source",
        )
    except Exception:  # noqa: BLE001  (the process boundary: everything becomes a coded failure)
        found = Failure(
            code=FailureCode.INTERNAL_ERROR, stage=Stage.SIGNATURE, detail=traceback.format_exc()
        )
    if isinstance(found, Failure):
        return json.dumps({"failure": dataclasses.asdict(found)})
    return json.dumps({"kernels": [_kernel(one, source) for one in found]})


def _kernel(one: ReadKernel, source: str) -> dict[str, object]:
    found: dict[str, object] = {"name": one.name, "build_options": one.build_options}
    if one.invented:
        found["invented"] = one.invented
    if one.source != source:
        found["source"] = one.source
    if one.signature is not None:
        found["signature"] = dataclasses.asdict(one.signature)
    if one.failure is not None:
        found["failure"] = dataclasses.asdict(one.failure)
    if one.errors:
        found["errors"] = one.errors
    if one.dense:
        found["dense"] = [dataclasses.asdict(access) for access in one.dense]
    return found


def _die_with_parent(parent_pid: int) -> None:
    # Not child_main.die_with_parent: its module brings pydantic, which doubles the start of this child.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def main() -> None:
    """Serve jobs on stdin until it closes."""
    _die_with_parent(int(sys.argv[1]))
    # A macro that unfolds for ever takes 50 MB/s, a file without an end ten times that. libclang aborts at the limit.
    bound_growth(_MAX_BYTES)
    lower_limit(resource.RLIMIT_CORE, 0)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    # libclang may write to stdout; the answers have a descriptor of their own.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = json.loads(line)
            answers.write(answer(job["source"], job["build_options"]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()

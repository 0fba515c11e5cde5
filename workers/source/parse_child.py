"""The child that parses: it reads jobs and writes kernels or a failure, each as one JSON line.

Owns the process boundary around libclang, which can crash on hostile sources and cannot be
interrupted; ``parse_pool.py`` is its parent. Imports neither Arrow nor pydantic, so that it starts
in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import traceback

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.installation import check_as_parent
from workers.sandbox.address_space import bound_growth, lower_limit
from workers.sandbox.parent_tie import die_with_parent
from workers.source.front_end import read_kernels
from workers.source.parse_memory import MemoryWatch
from workers.source.read_kernel import ReadKernel

_RECURSION_LIMIT = 10_000
"""Depth of Python calls. Since Python 3.11 these calls use no C stack, so a higher limit suffices
for deep expressions."""

_MAX_BYTES = 2 * 2**30
"""Bytes by which the child's address space may grow. The largest allowed source, 8 MiB of numbers,
needs 1.4 GiB."""


def answer(source: str, build_options: str) -> str:
    """Return the answer to one job: a JSON line with ``kernels`` or ``failure``."""
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
    # The kernels of a file often share errors, so each error is sent once and named by its number.
    errors: dict[str, int] = {}
    kernels = [_kernel(one, source, errors) for one in found]
    return json.dumps({"errors": list(errors), "kernels": kernels})


def _kernel(one: ReadKernel, source: str, errors: dict[str, int]) -> dict[str, object]:
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
        found["errors"] = [errors.setdefault(error, len(errors)) for error in one.errors]
    if one.dense:
        found["dense"] = [dataclasses.asdict(access) for access in one.dense]
    return found


def main() -> None:
    """Serve jobs on stdin until it closes."""
    die_with_parent(int(sys.argv[1]))
    check_as_parent()
    # A macro that expands for ever takes up to 500 MB/s. For a short source, the watch ends the
    # process early. For a long source, the watch allows more than this limit, at which libclang
    # ends.
    bound_growth(_MAX_BYTES)
    watch = MemoryWatch()
    watch.start()
    lower_limit(resource.RLIMIT_CORE, 0)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    # libclang may write to stdout, so the answers use a descriptor of their own.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = json.loads(line)
            watch.allow(job["source"])
            answers.write(answer(job["source"], job["build_options"]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()

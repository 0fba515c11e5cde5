"""The parse child with one step more: each kernel is instrumented for memory analysis, too.

Speaks the protocol of ``workers/source/parse_child.py``. A kernel that analysis cannot follow is ``unsupported`` with the
reason, any other exception an ``internal_error``; instrumented text that a parser refuses is counted as
``launch_error``, a code that no front end gives: the device's build would fail, and the kernel go unanalysed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from llmperf_common.failures import FailureCode, Stage
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.rewriter import UnresolvedError
from workers.source.clang.parse import diagnose
from workers.source.parse_child import answer

_MODULE = "tests.fuzz.instrument_child"


def command() -> tuple[str, ...]:
    """Return how ``parse_sources`` is to start this child."""
    return (sys.executable, "-m", _MODULE, str(os.getpid()))


def _instrumented(kernel: dict[str, Any], source: str) -> dict[str, Any]:
    if "signature" not in kernel or "failure" in kernel:
        return kernel
    text, options = kernel.get("source", source), kernel["build_options"]
    try:
        done = instrument(text, kernel["name"], options)
        errors = () if diagnose(text, options) else diagnose(done.source, options)
        code, detail = FailureCode.LAUNCH_ERROR, "instrumented text: " + "; ".join(errors)
    except UnresolvedError as error:
        errors, code, detail = ("unresolved",), FailureCode.UNSUPPORTED, f"unresolved: {error}"
    except Exception:  # noqa: BLE001  (that is what is looked for)
        errors, code, detail = ("raised",), FailureCode.INTERNAL_ERROR, traceback.format_exc()
    if errors:
        kernel["failure"] = {"code": code, "stage": Stage.PROBE, "detail": detail}
    return kernel


def main() -> None:
    """Serve jobs on stdin until it closes."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = json.loads(line)
            found = json.loads(answer(job["source"], job["build_options"]))
            if "kernels" in found:
                found["kernels"] = [_instrumented(one, job["source"]) for one in found["kernels"]]
            answers.write(json.dumps(found) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()

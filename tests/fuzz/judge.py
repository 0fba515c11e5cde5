"""What a front end may answer to a mutant, and what is a finding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from llmperf_common.failures import Failure, FailureCode
from llmperf_common.records import ArgumentKind, Signature
from workers.source.parse_pool import Parsed, parse_sources
from workers.source.read_kernel import ReadKernel

_SIZED = frozenset({kind for kind in ArgumentKind if kind.is_buffer} | {ArgumentKind.SCALAR})


def answers(
    texts: Sequence[str], *, timeout_s: float, num_children: int, command: Sequence[str] | None
) -> list[Parsed]:
    """Run the texts through the front end, in children that can be killed."""
    return parse_sources(texts, num_children=num_children, timeout_s=timeout_s, command=command)


def finding(parsed: Parsed) -> str | None:
    """Say what is wrong with an answer; None if it is one a user may get."""
    if isinstance(parsed, Failure):
        return _of_failure(parsed)
    names = [one.name for one in parsed]
    if len(set(names)) != len(names):
        return f"two signatures of one name: {names}"
    return next((wrong for one in parsed if (wrong := _of_kernel(one))), None)


def count(parsed: Parsed, into: Counter[str]) -> None:
    """Count what a source gave: a signature or a code for each kernel, or the file's."""
    if isinstance(parsed, Failure):
        into[f"file {parsed.code.value}"] += 1
    elif not parsed:
        into["file without kernel"] += 1
    else:
        into["kernel"] += len(parsed)
        into.update(one.failure.code.value if one.failure else "signature" for one in parsed)


def _of_kernel(kernel: ReadKernel) -> str | None:
    if kernel.failure is None and kernel.signature is None:
        return f"kernel {kernel.name!r}: neither signature nor failure"
    if kernel.failure is not None:
        wrong = _of_failure(kernel.failure)
    else:
        assert kernel.signature is not None
        wrong = next(_of_signature(kernel.signature), None)
    return wrong and f"kernel {kernel.name!r}: {wrong}"


def _of_failure(failure: Failure) -> str | None:
    if failure.code is FailureCode.INTERNAL_ERROR:
        return f"internal_error: {failure.detail}"
    return None if failure.detail else f"{failure.code.value} without a detail"


def _of_signature(signature: Signature) -> Iterator[str]:
    """Yield what everything behind the front end takes for granted and this signature does not give."""
    if not 1 <= signature.dims <= 3:
        yield f"{signature.dims} dimensions"
    if [one.position for one in signature.arguments] != list(range(len(signature.arguments))):
        yield "positions are not 0, 1, ..."
    for one in signature.arguments:
        if one.vector_width < 1 or not one.type_name:
            yield f"argument {one}"
        if one.kind in _SIZED and one.element_bytes < 1:
            yield f"a {one.kind.value} of no size: {one}"
    required = signature.required_local_size
    if required is not None and (len(required) != 3 or min(required) < 1):
        yield f"required local size {required}"
    if signature.static_local_bytes < 0:
        yield f"{signature.static_local_bytes} bytes of local memory"
    wrong = [name for name, value in signature.static_features.items() if not math.isfinite(value)]
    if wrong:
        yield f"features that are not finite numbers: {wrong}"

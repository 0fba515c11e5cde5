"""Parsing of a source text in this process: it needs no folder, and a failure gives a traceback."""

from __future__ import annotations

from llmperf_common.failures import Failure
from llmperf_common.ids import kernel_id, sha256_hex
from llmperf_common.records import Kernel
from workers.source.clang.parse import parse
from workers.source.front_end import read_kernels
from workers.source.signature import NamedSignature, signatures_of


def read_signatures(source: str, build_options: str = "") -> tuple[NamedSignature, ...]:
    """Return the signatures of the unchanged text, without inference and removal."""
    return signatures_of(parse(source, build_options), source)


def kernels_from_source(source: str) -> tuple[Kernel, ...]:
    """Return the kernels of a corpus with this file as ``k.cl``; each is its own family."""
    found = read_kernels(source)
    assert not isinstance(found, Failure), found.detail
    kernels = []
    for one in found:
        identifier = kernel_id(name=one.name, source=one.source, build_options=one.build_options)
        kernels.append(
            Kernel(
                kernel_id=identifier, name=one.name, source=one.source, source_sha256=sha256_hex(one.source.encode()),
                path="k.cl", suite="test", family_id=identifier, build_options=one.build_options,
                signature=one.signature, failure=one.failure,
            )
        )  # fmt: skip
    return tuple(kernels)

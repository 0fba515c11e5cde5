"""What a text says, read in this process: shorter than a folder with one file, and a traceback where it fails."""

from __future__ import annotations

from llmperf_common.failures import Failure
from llmperf_common.ids import kernel_id, sha256_hex
from llmperf_common.records import Kernel
from workers.source.clang.parse import parse
from workers.source.front_end import read_kernels
from workers.source.signature import NamedSignature, signatures_of


def read_signatures(source: str, build_options: str = "") -> tuple[NamedSignature, ...]:
    """Return the signatures as the text stands: nothing is inferred, nothing cut out."""
    return signatures_of(parse(source, build_options), source)


def kernels_from_source(source: str) -> tuple[Kernel, ...]:
    """Return what a corpus would hold of a file ``k.cl``, each kernel its own family."""
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

"""Kernel records with only the fields that a compiler, a launch and a count need."""

from __future__ import annotations

from llmperf_common.records import Kernel, Signature


def bare_kernel(
    *, name: str, source: str, build_options: str, signature: Signature | None, kernel_id: str = ""
) -> Kernel:
    """Return a kernel without path, suite, family and hash."""
    return Kernel(
        kernel_id=kernel_id, name=name, source=source, source_sha256="", path="", suite="", family_id="",
        build_options=build_options, signature=signature, failure=None,
    )  # fmt: skip

"""The analysis of a kernel of which nothing could be found out. Light: the parent of children uses it, too."""

from __future__ import annotations

from llmperf_common.analysis import Analysis, Extent
from llmperf_common.records import Kernel


def unknown_analysis(kernel: Kernel, why: str) -> Analysis:
    """Return an analysis without forms; ``why`` is the reason of each extent, and the failure."""
    assert kernel.signature is not None, "a kernel without signature is not analysed"
    return Analysis(
        extents=tuple(
            Extent(position=one.position, form=None, reason=why)
            for one in kernel.signature.arguments
            if one.kind.is_buffer
        ),
        failure=why,
    )

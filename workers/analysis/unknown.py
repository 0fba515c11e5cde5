"""The analysis of a kernel for which nothing could be found out.

Imports little, because the parent of the children imports this module.
"""

from __future__ import annotations

from llmperf_common.analysis import Analysis, Extent
from llmperf_common.files.host_paths import without_host_paths
from llmperf_common.records import Kernel


def unknown_analysis(kernel: Kernel, why: str) -> Analysis:
    """Return an analysis without forms; ``why`` is the failure and the reason of each extent.

    Paths of this host in ``why`` are shortened, because datasets and corpora are published.
    """
    assert kernel.signature is not None, "a kernel without signature is not analysed"
    why = without_host_paths(why)
    return Analysis(
        extents=tuple(
            Extent(position=one.position, form=None, reason=why)
            for one in kernel.signature.arguments
            if one.kind.is_buffer
        ),
        failure=why,
    )

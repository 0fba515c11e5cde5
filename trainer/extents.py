"""How many elements a buffer has that the user did not give, from the kernel's stored analysis.

Owns the choice what counts as an answer; forms are evaluated by ``llmperf_common/analysis.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmperf_common.store.analysis_rows import extent_from_row


def extent_elements(entry: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    """Return the elements of one buffer, at least 1; None where the analysis has no form for it.

    Args:
        entry: one of ``kernels.analysis``.
        sizes: as ``llmperf_common.analysis.launch_sizes`` gives them.
    """
    try:
        elements = extent_from_row(entry).elements(sizes)
    except KeyError:  # a factor that this launch does not have: the analysis is of another source
        return None
    return None if elements is None else max(1, elements)

"""A cache of the memory analyses that earlier predictions of this user have made.

Owns the folder, which has one file per kernel. A file's name is the kernel's content hash and the
version of the analysis. Unreadable files count as missing, and failures to write are ignored.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.analysis import ANALYSIS_VERSION, Analysis
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from llmperf_common.files.replacing import replacing
from llmperf_common.store.tables.analysis_rows import analysis_columns, analysis_from_row
from llmperf_common.store.tables.foreign_analysis import check_analysis

_MOST_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class AnalysisCache:
    """The cached analyses in one folder; the folder is created when needed."""

    folder: Path

    def read(self, kernel_id: str) -> Analysis | None:
        """Return the analysis of one kernel; None if no analysis is stored or it has expired."""
        try:
            row = json.loads(read_plain(self._path(kernel_id), max_bytes=_MOST_BYTES))
            if time.time() > row.get("until_s", math.inf):
                return None
            analysis = analysis_from_row(row)
            if analysis is not None:
                check_analysis(analysis)
        except (
            OSError, UnfitFileError, ValueError, KeyError, TypeError, AttributeError, RecursionError
        ):  # fmt: skip
            return None
        return analysis

    def write(self, kernel_id: str, analysis: Analysis, *, keep_s: float | None = None) -> None:
        """Store the analysis of one kernel; do nothing if the folder cannot be written.

        Args:
            kernel_id: the kernel's content hash.
            analysis: the analysis, or its failure.
            keep_s: seconds until the entry expires; None: never.
        """
        row = analysis_columns(analysis)
        if keep_s is not None:
            row["until_s"] = time.time() + keep_s
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self._path(kernel_id)) as partial:
                partial.write_text(json.dumps(row), encoding="utf-8")

    def _path(self, kernel_id: str) -> Path:
        return self.folder / f"{kernel_id}-v{ANALYSIS_VERSION}.json"

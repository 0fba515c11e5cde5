"""Analyses that ``llmperf corpus build --analyse`` keeps until its corpus is written.

Owns the folder ``.NAME.analyses`` beside the corpus: an interrupted command finds there what it has
analysed before. The form of the files is that of ``analysis_cache.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path

from llmperf.exits import CommandError, Exit
from llmperf.prediction.analysis_cache import FILES, AnalysisCache
from workers.corpus.parquet import Corpus, corpus_to_write

_CORPUS_BYTES, _BYTES_A_KERNEL = 2**20, 1024
"""Free space that a corpus needs: about half a kibibyte for each kernel of GitHub's corpus."""
_FILE_BYTES = 4096
"""Space of one kept analysis: a block of the usual file systems."""


class KeptAnalyses:
    """The folder of one corpus; ``close`` removes it if it is empty, ``remove`` in any case.

    Args:
        out: the corpus that will be written; links are followed.

    Raises:
        OutputTaken: There is a file or folder that is not a corpus.
        OSError: The folder cannot be created, so ``out`` could not be written, either.
    """

    def __init__(self, out: Path) -> None:
        self._target = corpus_to_write(out)
        self.folder = self._target.with_name(f".{self._target.name}.analyses")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write = AnalysisCache(self.folder).write

    def joined(self, corpus: Corpus) -> tuple[Corpus, int]:
        """Return the corpus with the kept analyses, and their number.

        Raises:
            CommandError: There is too little space for the corpus and the analyses to come.
        """
        cache = AnalysisCache(self.folder)
        kernels = [
            dataclasses.replace(one, analysis=cache.read(one.kernel_id))
            if one.failure is None and one.analysis is None
            else one
            for one in corpus.kernels
        ]
        num_kept = sum(
            after.analysis is not before.analysis
            for after, before in zip(kernels, corpus.kernels, strict=True)
        )
        num_open = sum(one.failure is None and one.analysis is None for one in kernels)
        self._check_space(len(kernels), num_open)
        return dataclasses.replace(corpus, kernels=tuple(kernels)), num_kept

    def _check_space(self, num_kernels: int, num_open: int) -> None:
        needed_bytes = _CORPUS_BYTES + num_kernels * _BYTES_A_KERNEL + num_open * _FILE_BYTES
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes < needed_bytes:
            raise CommandError(
                Exit.BAD_INPUT,
                f"--out {self._target}: too little space for the corpus ({free_bytes:,} bytes "
                f"free, {needed_bytes:,} needed): free some space, or name another path",
            )

    def remove(self) -> None:
        """Remove the kept analyses, and the folder if it holds nothing else."""
        for pattern in FILES:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

"""Analyses that ``llmperf corpus build --analyse`` keeps until its corpus is written.

Owns the folder ``.NAME.DEVICE.analyses`` beside the corpus. If the command is interrupted and run
again, it finds its earlier analyses there. ``analysis_cache.py`` owns the form of the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import stat
from pathlib import Path

from llmperf.exits import CommandError, Exit
from llmperf.prediction.analysis_cache import AnalysisCache
from llmperf_common.analysis import Analysis
from llmperf_common.files.outputs import OutputTaken
from llmperf_common.ids import sha256_hex
from llmperf_common.records import Kernel
from workers.corpus.parquet import Corpus, corpus_to_write
from workers.device.interface import DeviceRef

_CORPUS_BYTES, _BYTES_A_KERNEL = 2**20, 1024
"""Bytes of free space that a corpus needs: a fixed part, and a part for each kernel. (In a corpus
from GitHub a kernel takes about 0.5 KiB.)"""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OWN_NAME = re.compile(r"[0-9a-f]{20}-v\d+\.json|\.llmperf-\w+\.partial")
"""Names of the files of ``AnalysisCache``, including partial files that a killed process leaves."""
_FILE_BYTES = 4096
"""Bytes on disk of one kept analysis: one block of the usual file systems."""


class KeptAnalyses:
    """The folder of one corpus and one device, which only this user may write to.

    ``close`` removes the folder if it is empty; ``remove`` first removes the analyses in it.

    Args:
        out: the corpus that will be written; links are followed.
        device: the device of the analyses; those of another device are not used.

    Raises:
        OutputTaken: ``out`` exists and is not a corpus; or the folder for the analyses exists and
            is a link, is not a folder, or other users own it or may write to it.
        OSError: The folder cannot be created; ``out``, which lies beside it, could not be either.
    """

    def __init__(self, out: Path, device: DeviceRef) -> None:
        self._target = corpus_to_write(out)
        place = "|".join((device.selector, device.platform, device.name))
        name = f".{self._target.name}.{sha256_hex(place.encode())[:8]}.analyses"
        self.folder = self._target.with_name(name)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.mkdir(mode=0o700)
            is_new = True
        except FileExistsError:
            is_new = False
        found = self.folder.lstat()
        # The owner and mode of a new folder are not checked, because some file systems show others
        # than those that were set.
        is_own = is_new or (found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE)
        if not stat.S_ISDIR(found.st_mode) or not is_own:
            raise OutputTaken(
                f"{self.folder} would hold the analyses, but it is a link, is not a folder, or "
                "other users own it or may write to it: remove it, or name another --out"
            )
        self._cache = AnalysisCache(self.folder)
        self.write = self._cache.write

    def joined(self, corpus: Corpus) -> tuple[Corpus, int]:
        """Return the corpus with the kept analyses, and their number.

        Raises:
            CommandError: There is too little space for the corpus and the analyses to come.
        """
        kernels = [
            one if one.failure or one.analysis else dataclasses.replace(one, analysis=self._of(one))
            for one in corpus.kernels
        ]
        num_kept = sum(
            after.analysis is not before.analysis
            for after, before in zip(kernels, corpus.kernels, strict=True)
        )
        num_open = sum(one.failure is None and one.analysis is None for one in kernels)
        self._check_space(len(kernels), num_open)
        return dataclasses.replace(corpus, kernels=tuple(kernels)), num_kept

    def _of(self, kernel: Kernel) -> Analysis | None:
        """Return the kept analysis of a kernel; None if it does not fit the kernel's buffers."""
        found = self._cache.read(kernel.kernel_id)
        if found is None or kernel.signature is None:
            return None
        buffers = {one.position for one in kernel.signature.arguments if one.kind.is_buffer}
        return found if {one.position for one in found.extents} <= buffers else None

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
        """Remove all kept analyses, and the folder if it holds nothing else."""
        for path in self.folder.iterdir():
            if _OWN_NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()
        self.close()

    def close(self) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

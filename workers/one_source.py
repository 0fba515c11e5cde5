"""Read one source for a prediction: its kernels, their errors, and what they surely touch.

Owns what counts as an error of the source: what the parser does not understand after macros were
inferred, unless it is a name that a vendor's compiler may know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.failures import Failure
from llmperf_common.ids import sha256_hex
from llmperf_common.least_time import DenseAccess
from llmperf_common.records import Kernel
from workers.corpus import kernels_of, no_kernel, why_no_kernel
from workers.corpus_files import CorpusError, SourceFile
from workers.corpus_sources import find_sources
from workers.parse_pool import parse_sources

_VENDOR_NAME = re.compile(
    r"(?:undeclared identifier|undeclared function|implicit declaration of function|unknown type name)"
    r" '(?:__\w+|(?:intra_)?sub_group_\w+"
    r"|(?:work_group|intel|amd|arm|qcom|nv|cl|atomic|atom|memory|image)_\w+)'"
)
"""Complaints about names of language extensions, which a device's compiler may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKernel:
    """One kernel of a source.

    Attributes:
        kernel: as a corpus has it.
        errors: what a compiler would refuse, as ``line: text``; lines of the text with its headers
            put in.
        unknown: complaints about names that a vendor's compiler may know.
        dense: what it surely touches.
    """

    kernel: Kernel
    errors: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    dense: tuple[DenseAccess, ...] = ()


def files_of_path(path: Path) -> tuple[SourceFile, ...]:
    """Return what a path holds, the headers that are included put in.

    Raises:
        CorpusError: It cannot be read.
    """
    return find_sources(path, None).files


def file_of_text(text: str, name: str) -> SourceFile:
    """Return OpenCL C that is in no file; ``name`` stands for it in messages. It has no headers."""
    digest = sha256_hex(text.encode("utf-8", "replace"))
    return SourceFile(path=name, suite="", sha256=digest, text=text, problem="")


def read(path: Path, files: tuple[SourceFile, ...]) -> tuple[SourceKernel, ...]:
    """Read the kernels of some files, in a child; ``path`` names them in messages.

    Raises:
        CorpusError: There is no kernel.
    """
    readable = [file for file in files if file.text is not None]
    found: list[SourceKernel] = []
    skipped: list[tuple[str, str]] = [(one.path, one.problem) for one in files if one.text is None]
    answers = parse_sources([file.text or "" for file in readable])
    for file, parsed in zip(readable, answers, strict=True):
        kernels = kernels_of(file, parsed, "")
        if isinstance(parsed, Failure):
            found += [SourceKernel(kernel=one) for one in kernels]
        elif not parsed:
            skipped.append((file.path, why_no_kernel(file)))
        else:
            found += [
                SourceKernel(
                    kernel=kernel,
                    errors=tuple(error for error in one.errors if not _VENDOR_NAME.search(error)),
                    unknown=tuple(error for error in one.errors if _VENDOR_NAME.search(error)),
                    dense=one.dense,
                )
                for kernel, one in zip(kernels, parsed, strict=True)
            ]
    if not found:
        raise CorpusError(no_kernel([path], skipped))
    return tuple(found)

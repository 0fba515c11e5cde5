"""Read one source for a prediction: its kernels, their errors, and their certain accesses.

Decides what counts as an error of the source: each parser error that remains after the values of
macros were inferred, except errors about a name that a vendor's compiler may know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.failures import Failure
from llmperf_common.features.least_time import DenseAccess
from llmperf_common.ids import sha256_hex
from llmperf_common.records import Kernel
from workers.corpus.files import CorpusError, SourceFile
from workers.corpus.read import kernels_of, no_kernel, why_no_kernel
from workers.corpus.sources import find_sources
from workers.source.parse_pool import parse_sources

_VENDOR_NAME = re.compile(
    r"(?:undeclared identifier|undeclared function|implicit declaration of function"
    r"|unknown type name)"
    r" '(?:__\w+|(?:intra_)?sub_group_\w+"
    r"|(?:work_group|intel|amd|arm|qcom|nv|cl|atomic|atom|memory|image)_\w+)'"
)
"""Parser errors about names of language extensions, which a device's compiler may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKernel:
    """One kernel of a source.

    Attributes:
        kernel: the kernel as a corpus has it.
        errors: errors that a compiler would report, as ``line: text``. If the line is not certainly
            one of the file itself, ``N of the text with its headers inserted: text``.
        unknown: errors about names that a vendor's compiler may know, in the same form.
        dense: the accesses that every work-item surely makes.
    """

    kernel: Kernel
    errors: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    dense: tuple[DenseAccess, ...] = ()


def files_of_path(path: Path) -> tuple[SourceFile, ...]:
    """Return the files below a path, with included headers put in.

    Raises:
        CorpusError: The path cannot be read.
    """
    return find_sources(path, None).files


def file_of_text(text: str, name: str) -> SourceFile:
    """Return OpenCL C text as a file that messages call ``name``; its includes stay."""
    digest = sha256_hex(text.encode("utf-8", "replace"))
    return SourceFile(path=name, suite="", sha256=digest, text=text, problem="")


def read(path: Path, files: tuple[SourceFile, ...]) -> tuple[SourceKernel, ...]:
    """Read the kernels of some files in a child process.

    Args:
        path: the source that messages name; if it is a single file, errors have its line numbers.
        files: the source's files, with their headers put in.

    Raises:
        CorpusError: The files have no kernel.
    """
    readable = [file for file in files if file.text is not None]
    found: list[SourceKernel] = []
    skipped: list[tuple[str, str]] = [(one.path, one.problem) for one in files if one.text is None]
    own_text = _own_text(path) if len(readable) == 1 else None
    answers = parse_sources([file.text or "" for file in readable])
    for file, parsed in zip(readable, answers, strict=True):
        kernels = kernels_of(file, parsed, "")
        if isinstance(parsed, Failure):
            found += [SourceKernel(kernel=one) for one in kernels]
        elif not parsed:
            skipped.append((file.path, why_no_kernel(file)))
        else:
            lines = _Lines(file.text or "", own_text)
            for kernel, one in zip(kernels, parsed, strict=True):
                errors, unknown = lines.told(one.errors)
                found.append(
                    SourceKernel(kernel=kernel, errors=errors, unknown=unknown, dense=one.dense)
                )
    if not found:
        raise CorpusError(no_kernel([path], skipped))
    return tuple(found)


def _own_text(path: Path) -> str | None:
    """Return a file's text before headers are put in; None if ``path`` is not a text file."""
    try:
        return path.read_bytes().decode("utf-8-sig") if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


class _Lines:
    """Finds the line numbers of the file before headers were put in.

    A number is certain before the first header and after the last one: the texts are equal there.
    """

    def __init__(self, text: str, own_text: str | None) -> None:
        self._is_own = own_text is None or own_text == text
        lines, own_lines = text.split("\n"), (own_text or "").split("\n")
        self._num_lines, self._num_own_lines = len(lines), len(own_lines)
        self._num_before = _num_equal(lines, own_lines)
        self._num_after = _num_equal(lines[::-1], own_lines[::-1])
        self._known: dict[str, tuple[str, bool]] = {}

    def told(self, errors: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a kernel's errors, and those about names that a vendor's compiler may know.

        The kernels of a file often share thousands of errors, so each error is examined once.
        """
        for error in errors:
            if error not in self._known:
                told = self._with_own_line(error)
                self._known[error] = (told, _VENDOR_NAME.search(told) is not None)
        told_errors = [self._known[error] for error in errors]
        return (
            tuple([told for told, is_vendors in told_errors if not is_vendors]),
            tuple([told for told, is_vendors in told_errors if is_vendors]),
        )

    def _with_own_line(self, error: str) -> str:
        if self._is_own:
            return error
        number, _, what = error.partition(": ")
        line = int(number)
        if line <= self._num_before:
            return error
        if self._num_lines - line < self._num_after:
            return f"{line - self._num_lines + self._num_own_lines}: {what}"
        return f"{line} of the text with its headers inserted: {what}"


def _num_equal(some: list[str], others: list[str]) -> int:
    """Return the number of equal lines at the start of two texts."""
    pairs = zip(some, others, strict=False)
    return next(
        (num for num, (one, other) in enumerate(pairs) if one != other),
        min(len(some), len(others)),
    )

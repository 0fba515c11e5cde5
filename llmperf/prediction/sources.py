"""Reading and checking of the kernel to predict, from a path or a text; results are cached."""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from llmperf_common.files.visible import shortened
from trainer.errors import BadInput
from workers.corpus.files import SourceFile
from workers.corpus.one_source import SourceKernel, file_of_text, files_of_path, read
from workers.corpus.read import CorpusError

_MAX_SOURCES = 256
_MOST_ERRORS = 3
_TEXT_NAME = "source text"


def is_text(source: str | Path) -> bool:
    """Whether ``source`` is OpenCL C text and not a path.

    >>> is_text("kernel void f() {}"), is_text("kernels/saxpy.cl")
    (True, False)
    """
    return isinstance(source, str) and ("\n" in source or ("{" in source and "kernel" in source))


@dataclass(slots=True)
class SourceReader:
    """Reads sources and caches them by content, so that an edited file is read again."""

    _known: dict[tuple[SourceFile, ...], tuple[SourceKernel, ...]] = field(default_factory=dict)

    def kernel(
        self, source: str | Path, wanted: str | None, trained: Container[str] = ()
    ) -> SourceKernel:
        """Return one kernel of a source.

        Args:
            source: a path, or OpenCL C text.
            wanted: name of the kernel; None if the source has one kernel.
            trained: ids of kernels that ran on the model's device; their parser errors are ignored.

        Raises:
            BadInput: The source cannot be read, lacks the kernel, or does not compile.
        """
        if not isinstance(source, str | os.PathLike):
            raise BadInput(f"source {source!r}: give the path of an OpenCL source, or its text")
        where = _TEXT_NAME if is_text(source) else str(source)
        found = {one.kernel.name: one for one in self._read(source, where)}
        names = sorted(found)
        shown = ", ".join(map(shortened, names))
        if wanted is None and len(names) > 1:
            raise BadInput(f"{where} has {len(names)} kernels: choose one with --kernel: {shown}")
        if wanted is not None and wanted not in found:
            unread = [one.kernel.failure for one in found.values() if one.kernel.failure]
            if unread:  # the file could not be parsed: show why
                raise BadInput(f"{where}: {unread[0].detail}")
            raise BadInput(f"{where} has no kernel {shortened(wanted)!r}: it has {shown}")
        chosen = found[wanted if wanted is not None else names[0]]
        kernel = chosen.kernel
        if kernel.signature is None or kernel.failure is not None:
            why = kernel.failure.detail if kernel.failure else "its arguments cannot be read"
            raise BadInput(f"{where}: kernel {shortened(kernel.name)}: {why}")
        if chosen.errors and kernel.kernel_id not in trained:
            raise BadInput(_refusal(where, chosen))
        return chosen

    def _read(self, source: str | Path, where: str) -> tuple[SourceKernel, ...]:
        try:
            files: tuple[SourceFile, ...] = (
                (file_of_text(_encodable(str(source)), _TEXT_NAME),)
                if is_text(source)
                else files_of_path(_checked(source))
            )
            if files not in self._known:
                found = read(Path(where), files)
                if any(one.kernel.failure is not None for one in found):
                    return found  # not cached: a busy machine may have caused the failure
                if len(self._known) >= _MAX_SOURCES:
                    self._known.pop(next(iter(self._known)))
                self._known[files] = found
        except CorpusError as error:
            raise BadInput(str(error)) from None
        return self._known[files]


def _checked(source: str | Path) -> Path:
    if not str(source).strip():
        raise BadInput("the source is empty: give OpenCL C text, or the path of an OpenCL C file")
    path = Path(source)
    try:
        what = _why_no_file(path)
    except OSError as error:  # the name is too long, or a folder may not be read
        what = str(error.strerror)
    if what:
        shown = shortened(str(path))
        raise BadInput(f"{shown}: {what}: name a readable OpenCL source file")
    return path


def _why_no_file(path: Path) -> str:
    if path.is_file():
        return ""
    there = "is not a regular file" if path.exists() else "No such file"
    return "Is a directory" if path.is_dir() else there


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{error.reason} at character {error.start}"
        raise BadInput(f"{_TEXT_NAME}: the text is not UTF-8: {where}") from None
    return text


def _refusal(where: str, chosen: SourceKernel) -> str:
    text = "\n".join(_located(where, error) for error in chosen.errors[:_MOST_ERRORS])
    if len(chosen.errors) > _MOST_ERRORS:
        text += f"\n(and {len(chosen.errors) - _MOST_ERRORS} more)"
    name = shortened(chosen.kernel.name)
    return f"{text}\nkernel {name} does not compile: correct the source"


def _located(where: str, error: str) -> str:
    line, _, what = error.partition(": ")
    place = f"{where}:{line}" if line.isdigit() else f"{where}: line {line}"
    return f"{place}: error: {what}"

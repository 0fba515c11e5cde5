"""Put the headers that a source includes into its text, where its own folder, archive or repository has them.

Owns which header an ``#include "..."`` means. A kernel's source must stand alone: a device's compiler never sees
other files. Nothing outside of the source is ever looked at.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from workers.corpus_files import SourceFile

MAX_TEXT_CHARS = 2**20
"""A text that headers make longer than this stays as it is."""
_MAX_DEPTH = 8
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)

Lookup = Callable[[str], str | None]
"""The text of a header by its path inside the source; None where there is none."""


def with_includes(files: Iterable[SourceFile], lookup: Lookup) -> tuple[SourceFile, ...]:
    """Return the files with every ``#include "..."`` that ``lookup`` knows replaced by the header.

    A name is looked for beside the file that includes it, then in each folder above: host programs are started
    there, or pass it with ``-I``.

    >>> file = SourceFile(path="a/k.cl", suite="s", sha256="", text='#include "t.h"', problem="")
    >>> with_includes([file], {"t.h": "typedef float T;"}.get)[0].text
    'typedef float T;'
    """
    return tuple(
        replace(one, text=_expanded(one.path, one.text, lookup))
        if one.text is not None and "include" in one.text
        else one
        for one in files
    )


class _TooLongError(Exception):
    """Headers include each other without end, or are too large together."""


def _expanded(path: str, text: str, lookup: Lookup) -> str:
    try:
        return _Expansion(lookup).expand(path, text, 0)
    except _TooLongError:
        return text


class _Expansion:
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._num_chars = 0
        self._seen_once: set[str] = set()

    def expand(self, path: str, text: str, depth: int) -> str:
        self._num_chars += len(text)
        if depth > _MAX_DEPTH or self._num_chars > MAX_TEXT_CHARS:
            raise _TooLongError

        def header(match: re.Match[str]) -> str:
            for place in _places(path, match.group(1)):
                if place in self._seen_once:
                    return ""
                found = self._lookup(place)
                if found is not None:
                    if _ONCE.search(found):
                        self._seen_once.add(place)
                        found = _ONCE.sub("", found)
                    return self.expand(place, found, depth + 1)
            return match.group()

        return _INCLUDE.sub(header, text)


def _places(path: str, name: str) -> list[str]:
    places = [
        posixpath.normpath(posixpath.join(str(folder), name.replace("\\", "/")))
        for folder in PurePosixPath(path).parents
    ]
    inside = [one for one in places if not one.startswith(("..", "/"))]
    return list(dict.fromkeys(inside))

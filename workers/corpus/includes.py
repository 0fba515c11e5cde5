"""Replace a file's includes by the headers, if its own folder, archive or repository has them.

Decides which header an ``#include "..."`` means. A kernel's text must stand alone, because a
device's compiler never sees other files. Nothing outside the folder, archive or repository is read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from workers.corpus.files import (
    MAX_HEADER_TEXT_BYTES,
    MemoryBudget,
    SourceFile,
    held_bytes,
    is_header_name,
    is_source_name,
)

MAX_TEXT_CHARS = 2**20
"""Characters of a text with its headers; a longer text keeps its includes."""
MAX_EXPANDED_BYTES = 512 * 2**20
"""Bytes of memory for the headers put into all files of one source. Without this limit, a small
archive could include one large header very often."""
_MAX_DEPTH = 8
_MAX_INCLUDES = 4096
"""Includes of one text. Together with the limit on folders this bounds the look-ups for a text that
consists of includes only."""
_MAX_FOLDERS_ABOVE = 32
_TOKEN = re.compile(
    r"""
      /\*.*?(?:\*/|\Z)
    | //(?:\\\r?\n|[^\n])*
    | "(?:\\.|[^"\\\n])*"?
    | '(?:\\.|[^'\\\n])*'?
    | \#[ \t]*(?:
        include[ \t]*"(?P<name>[^"\n]+)"[ \t]*(?://(?:\\\r?\n|[^\n])*)?
      | pragma[ \t]+(?P<once>once)\b
      | (?P<condition>if|ifdef|ifndef|elif|else|endif)\b
      )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Comments and strings, which hold no directives, and candidates for the directives needed here.

Every alternative begins with a literal character, so that the search can jump to the next one.
"""

Lookup = Callable[[str], str | None]
"""The text of a header by its path inside the source; None if there is no such header."""


def with_includes(files: Iterable[SourceFile], lookup: Lookup) -> tuple[SourceFile, ...]:
    """Return the files with every ``#include "..."`` that ``lookup`` knows replaced by the header.

    A header is searched beside the file that includes it, then in each folder above, because host
    programs run there or pass the folder with ``-I``. A file whose headers exceed the memory budget
    gets a problem instead of a text.

    >>> file = SourceFile(path="a/k.cl", suite="s", sha256="", text='#include "t.h"', problem="")
    >>> with_includes([file], {"a/t.h": "typedef float T;"}.get)[0].text
    'typedef float T;'
    """
    budget = MemoryBudget(MAX_EXPANDED_BYTES)
    return tuple(_expanded(one, lookup, budget) for one in files)


def remembered(lookup: Lookup) -> Lookup:
    """Return ``lookup`` with a cache, which holds headers as far as the memory budget allows."""
    budget = MemoryBudget(MAX_HEADER_TEXT_BYTES)
    known: dict[str, str] = {}

    def find(name: str) -> str | None:
        found = known.get(name) or lookup(name)
        if found and name not in known and budget.take(held_bytes(found)):
            known[name] = found
        return found

    return find


class _TooLongError(Exception):
    """Headers include each other without end, or are together too large for one text."""


class _BudgetSpentError(Exception):
    """The headers put into all files of the source exceed the memory budget."""


def _expanded(file: SourceFile, lookup: Lookup, budget: MemoryBudget) -> SourceFile:
    if file.text is None or "include" not in file.text:
        return file
    try:
        text = _Expansion(lookup, budget).of(file.path, file.text)
        if text == file.text or budget.take(held_bytes(text)):
            return replace(file, text=text)
    except _TooLongError:
        budget.take(MAX_TEXT_CHARS)  # the text is not held, but it took time to make
        return file
    except _BudgetSpentError:
        pass
    problem = (
        "its headers do not fit, because the files of this source and their headers take more than "
        f"{MAX_EXPANDED_BYTES} bytes: name its folders one at a time"
    )
    return replace(file, text=None, problem=problem)


class _Expansion:
    """One file being expanded.

    ``#pragma once`` has no effect once a header is part of the text, and it is unknown which
    branches of ``#if`` are compiled. So a later copy of a header with this pragma is left out if an
    earlier copy is certainly compiled; otherwise each copy gets a guard.
    """

    def __init__(self, lookup: Lookup, budget: MemoryBudget) -> None:
        self._lookup = lookup
        self._budget = budget
        self._pieces: list[str] = []
        self._num_chars = self._num_includes = 0
        self._guards: dict[str, list[int]] = {}
        self._certain: list[set[str]] = [set()]
        """Inserted headers with ``#pragma once``: those in the file, and in each open branch."""

    def of(self, path: str, text: str) -> str:
        self._expand(path, text, 0)
        for places in self._guards.values():
            if len(places) == 2:  # one copy needs no guard
                for place in places:
                    self._pieces[place] = ""
        return "".join(self._pieces)

    def _put(self, piece: str) -> None:
        self._num_chars += len(piece)
        if self._num_chars > MAX_TEXT_CHARS:
            raise _TooLongError
        self._pieces.append(piece)

    def _expand(self, path: str, text: str, depth: int) -> None:
        if depth > _MAX_DEPTH or len(text) > MAX_TEXT_CHARS:
            raise _TooLongError
        num_outside = len(self._certain)
        done = 0
        for token in _directives(text):
            name, condition = token["name"], token["condition"]
            if condition:
                self._enter_branch(condition, num_outside)
            elif token["once"] and depth:
                self._put(text[done : token.start()])
                done = token.end()
            elif name and (header := self._find(path, name)):
                self._put(text[done : token.start()])
                self._include(*header, depth + 1)
                done = token.end()
                if text[done : done + 1] not in ("", "\r", "\n"):
                    self._put("\n")  # a comment follows; the header may end in one, too
        self._put(text[done:])
        del self._certain[num_outside:]

    def _enter_branch(self, word: str, num_outside: int) -> None:
        if len(self._certain) > num_outside and not word.startswith("if"):
            self._certain.pop()
        if word != "endif":
            self._certain.append(set())

    def _include(self, place: str, text: str, depth: int) -> None:
        if "once" not in text or not any(one["once"] for one in _directives(text)):
            self._put_header(place, text, depth)
        elif not any(place in names for names in self._certain):
            self._certain[-1].add(place)
            guards = self._guards.setdefault(place, [])
            guard = f"LLMPERF_ONCE_{list(self._guards).index(place) + 1}"
            guards.append(len(self._pieces))
            self._put(f"#ifndef {guard}\n#define {guard}\n")
            self._put_header(place, text, depth)
            guards.append(len(self._pieces))
            self._put("\n#endif")

    def _put_header(self, place: str, text: str, depth: int) -> None:
        if not self._budget.take(0):
            raise _BudgetSpentError
        self._expand(place, text + "\n" if text.endswith("\\") else text, depth)

    def _find(self, path: str, name: str) -> tuple[str, str] | None:
        self._num_includes += 1
        if self._num_includes > _MAX_INCLUDES:
            raise _TooLongError
        for place in _places(path, name):
            found = self._lookup(place)
            if found is not None:
                return place, found
        return None


def _directives(text: str) -> Iterator[re.Match[str]]:
    """Yield the tokens that are directives: first on a line that does not continue another."""
    done = 0
    for token in _TOKEN.finditer(text):
        if token.group().startswith("#"):
            line_start = text.rfind("\n", done, token.start()) + 1
            continues = text.endswith(("\\\n", "\\\r\n"), 0, line_start)
            begins = (line_start or not done) and not text[line_start : token.start()].strip(" \t")
            if begins and not continues:
                yield token
        done = token.end()


def _places(path: str, name: str) -> list[str]:
    places = [
        posixpath.normpath(posixpath.join(str(folder), name.replace("\\", "/")))
        for folder in PurePosixPath(path).parents[:_MAX_FOLDERS_ABOVE]
    ]
    inside = [one for one in places if not one.startswith(("..", "/"))]
    return [one for one in dict.fromkeys(inside) if is_header_name(one) or is_source_name(one)]

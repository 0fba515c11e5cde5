"""Replace a file's includes by the headers, if its own folder, archive or repository has them.

Decides which header an ``#include "..."`` means. A kernel's text must stand alone, because a
device's compiler never sees other files. Nothing outside the folder, archive or repository is read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
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
"""Maximum characters of a text with its headers; if the text would be longer, it keeps its
includes."""
MAX_EXPANDED_BYTES = 512 * 2**20
"""Bytes of memory for the headers put into all files of one source. Without this limit, a small
archive could include one large header very often."""
_MAX_DEPTH = 8
_MAX_INCLUDES = 4096
"""Maximum includes of one text."""
_MAX_FOLDERS_ABOVE = 32
_MAX_STEPS = 2_000_000
_STEPS_PER_FILE = 2_000
_STEPS_PER_PLACE = 4
"""Work allowed for all files of one source, in steps of about 1 us: one for each directive, four
for each place where a header is looked for. The work allowed for each further file takes less time
than parsing a file."""
_MAX_REMEMBERED = 100_000
"""Maximum includes for which the place of the header is remembered; 30 MB."""
_DIRECTIVE = re.compile(
    r"""
    (?: [^/"'\#]++
      | /\*.*?(?:\*/|\Z)
      | //(?:\\\r?\n|[^\n])*+
      | "(?:\\.|[^"\\\n])*+"?
      | '(?:\\.|[^'\\\n])*+'?
      | /
      | \#(?![ \t]*(?:include[ \t]*"[^"\n]+"|pragma[ \t]+once\b
            |(?:if|ifdef|ifndef|elif|else|endif)\b))
    )*+
    (?P<directive>\#[ \t]*+(?:
        include[ \t]*"(?P<name>[^"\n]+)"[ \t]*(?://(?:\\\r?\n|[^\n])*)?
      | pragma[ \t]+(?P<once>once)\b
      | (?P<condition>if|ifdef|ifndef|elif|else|endif)\b
    ))?
    """,
    re.VERBOSE | re.DOTALL,
)
"""Text without directives, and then a candidate for one of the directives needed here.

The expression skips comments and strings, which hold no directives. One match skips all of them,
because a match for each would take most of the time.
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
    listed = list(files)
    headers = _Headers(lookup, len(listed))
    return tuple(_expanded(one, headers) for one in listed)


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
    """The headers put into all files of the source exceed the budget of memory or work."""


class _Headers:
    """The headers of one source, and the budgets of memory and work for all its files."""

    def __init__(self, lookup: Lookup, num_files: int) -> None:
        self.memory = MemoryBudget(MAX_EXPANDED_BYTES)
        self._lookup = lookup
        self._steps_left = _MAX_STEPS + num_files * _STEPS_PER_FILE
        self._places: dict[tuple[str, str], str | None] = {}
        self._comes_once: dict[str, bool] = {}

    def work(self, num_steps: int) -> None:
        """Count work. Raises _BudgetSpentError."""
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise _BudgetSpentError

    def find(self, path: str, name: str) -> str | None:
        """Return the place of the header that a file at ``path`` includes as ``name``, or None."""
        key = (path.rpartition("/")[0], name)
        if key in self._places:
            return self._places[key]
        place = next(
            (one for one in self._tried(path, name) if self._lookup(one) is not None), None
        )
        if len(self._places) < _MAX_REMEMBERED:
            self._places[key] = place
        return place

    def text(self, place: str) -> str:
        """Return the text of a header that ``find`` found; empty if it has vanished since."""
        return self._lookup(place) or ""

    def comes_once(self, place: str, text: str) -> bool:
        """Whether a header has ``#pragma once``."""
        known = self._comes_once.get(place)
        if known is None:
            known = "once" in text and any(one["once"] for one in self.directives(text))
            self._comes_once[place] = known
        return known

    def directives(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the directives: those that begin a line, if it does not continue another line."""
        done = 0
        while True:
            found = _DIRECTIVE.match(text, done)
            assert found is not None, "the expression matches an empty text, too"
            if found["directive"] is None:
                return
            self.work(1)
            start = found.start("directive")
            line_start = text.rfind("\n", done, start) + 1
            continues = text.endswith(("\\\n", "\\\r\n"), 0, line_start)
            begins = (line_start or not done) and not text[line_start:start].strip(" \t")
            if begins and not continues:
                yield found
            done = found.end()

    def _tried(self, path: str, name: str) -> Iterator[str]:
        for place in _places(path, name):
            self.work(_STEPS_PER_PLACE)
            yield place


def _expanded(file: SourceFile, headers: _Headers) -> SourceFile:
    if file.text is None or "include" not in file.text:
        return file
    try:
        text = _Expansion(headers).of(file.path, file.text)
        if text == file.text or headers.memory.take(held_bytes(text)):
            return replace(file, text=text)
    except _TooLongError:
        headers.memory.take(MAX_TEXT_CHARS)  # counts the time that this text took
        return file
    except _BudgetSpentError:
        pass
    problem = (
        "its headers do not fit, because the files of this source and their headers take more than "
        f"{MAX_EXPANDED_BYTES} bytes, or have too many directives: name its folders one at a time"
    )
    return replace(file, text=None, problem=problem)


class _Expansion:
    """One file being expanded.

    ``#pragma once`` has no effect once a header is part of the text, and it is unknown which
    branches of ``#if`` are compiled. So a later copy of a header with this pragma is left out if an
    earlier copy is certainly compiled; otherwise each copy gets a guard.
    """

    def __init__(self, headers: _Headers) -> None:
        self._headers = headers
        self._pieces: list[str] = []
        self._num_chars = self._num_includes = 0
        self._guards: dict[str, tuple[str, list[int]]] = {}
        """For each inserted header with ``#pragma once``: the name of its guard, and the indices of
        the guard's lines in ``_pieces``."""
        self._certain: set[str] = set()
        """The headers with ``#pragma once`` of which an earlier copy is certainly compiled."""
        self._branches: list[list[str]] = [[]]
        """The headers of ``_certain`` by place: first those outside of branches, then those of each
        open branch of ``#if``."""

    def of(self, path: str, text: str) -> str:
        self._expand(path, text, 0)
        for _, places in self._guards.values():
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
        num_outside = len(self._branches)
        done = 0
        for found in self._headers.directives(text):
            name, condition, start = found["name"], found["condition"], found.start("directive")
            if condition:
                self._enter_branch(condition, num_outside)
            elif found["once"] and depth:
                self._put(text[done:start])
                done = found.end()
            elif name and (place := self._find(path, name)) is not None:
                self._put(text[done:start])
                self._include(place, depth + 1)
                done = found.end()
                if text[done : done + 1] not in ("", "\r", "\n"):
                    self._put("\n")  # a comment follows, or the header ends in a comment
        self._put(text[done:])
        while len(self._branches) > num_outside:
            self._leave_branch()

    def _enter_branch(self, word: str, num_outside: int) -> None:
        if len(self._branches) > num_outside and not word.startswith("if"):
            self._leave_branch()
        if word != "endif":
            self._branches.append([])

    def _leave_branch(self) -> None:
        self._certain.difference_update(self._branches.pop())

    def _include(self, place: str, depth: int) -> None:
        if place in self._certain:
            return
        text = self._headers.text(place)
        if not self._headers.comes_once(place, text):
            self._put_header(place, text, depth)
            return
        self._certain.add(place)
        self._branches[-1].append(place)
        guard, places = self._guards.setdefault(
            place, (f"LLMPERF_ONCE_{len(self._guards) + 1}", [])
        )
        places.append(len(self._pieces))
        self._put(f"#ifndef {guard}\n#define {guard}\n")
        self._put_header(place, text, depth)
        places.append(len(self._pieces))
        self._put("\n#endif")

    def _put_header(self, place: str, text: str, depth: int) -> None:
        if not self._headers.memory.take(0):
            raise _BudgetSpentError
        self._expand(place, text + "\n" if text.endswith("\\") else text, depth)

    def _find(self, path: str, name: str) -> str | None:
        self._num_includes += 1
        if self._num_includes > _MAX_INCLUDES:
            raise _TooLongError
        return self._headers.find(path, name)


def _places(path: str, name: str) -> list[str]:
    name = name.replace("\\", "/")
    places = [posixpath.normpath(posixpath.join(folder, name)) for folder in _folders(path)]
    inside = [one for one in places if not one.startswith(("..", "/"))]
    return [one for one in dict.fromkeys(inside) if is_header_name(one) or is_source_name(one)]


@lru_cache(maxsize=256)
def _folders(path: str) -> tuple[str, ...]:
    """Return the folder of a file and those above it."""
    return tuple(map(str, PurePosixPath(path).parents[:_MAX_FOLDERS_ABOVE]))

"""Find the kernels of a text by a search for words, without parsing the text.

Owns the search for ``__kernel void name(...) {``. The search also finds a kernel that the parser
drops because of errors, and a kernel in a branch of ``#if`` that is not compiled. ``front_end.py``
compares the names with those of the parser, so that no kernel is skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmperf_common.families.tokens import without_texts
from workers.source.preprocessor_guards import Branch, branches_by_line

_KERNEL_WORD = re.compile(r"\b(?:__kernel|kernel)\b")
_ATTRIBUTE = r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)"
_KERNEL_HEADER = re.compile(
    rf"\b(?:__kernel|kernel)\b(?:\s|\bvoid\b|\b(?:static|inline)\b|{_ATTRIBUTE})*?"
    rf"\bvoid\b(?:\s|{_ATTRIBUTE})*([A-Za-z_]\w*)\s*\("
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.MULTILINE)
_BODY = re.compile(r"\s*\{")
_NEVER = re.compile(r"\(?[ \t]*0[ \t]*\)?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelHeader:
    """One kernel of a text. ``branches``: the ``#if`` branches around it, outermost first."""

    name: str
    branches: tuple[Branch, ...]


def mentions_kernel(source: str) -> bool:
    """Whether a source has the word ``kernel`` or ``__kernel`` outside comments and strings."""
    return _KERNEL_WORD.search(without_texts(source)) is not None


def kernel_headers(source: str) -> tuple[KernelHeader, ...]:
    r"""Return the kernels that a text defines, in order of appearance.

    A name occurs several times if several branches of ``#if`` define it. Two kinds of kernels are
    not found: those whose header comes from a macro, and those inside ``#if 0``, which is a way to
    comment out code.

    >>> text = "kernel void a(int x) {}\n#ifdef G\nkernel void b() {}\n#endif"
    >>> [one.name for one in kernel_headers(text)]
    ['a', 'b']
    """
    text = without_texts(source)
    code = _DIRECTIVE.sub(lambda match: "\n" * match[0].count("\n"), text)
    return tuple(_headers(code, branches_by_line(text)))


def _headers(code: str, branches: list[tuple[Branch, ...]]) -> Iterator[KernelHeader]:
    closings: dict[int, int] | None = None
    line, counted_to = 0, 0
    for match in _KERNEL_HEADER.finditer(code):
        if closings is None:
            closings = _closings(code)
        end = closings.get(match.end() - 1)
        if end is None or not _BODY.match(code, end + 1):
            continue
        line += code.count("\n", counted_to, match.start())
        counted_to = match.start()
        around = branches[line]
        if not any(_NEVER.fullmatch(one.condition) for one in around):
            yield KernelHeader(name=match[1], branches=around)


def _closings(code: str) -> dict[int, int]:
    """Map the offset of each opening parenthesis to the offset of its closing one."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[()]", code):
        if match[0] == "(":
            opened.append(match.start())
        elif opened:
            found[opened.pop()] = match.start()
    return found

"""Which kernels a text defines, whatever a parser makes of it.

Owns the search by words: ``__kernel void name(...) {``. So a kernel that an erroneous parse drops, or that ``#if`` holds
shut, is known by name and cannot be skipped in silence. Its use: ``front_end.py``.
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
    """One kernel that a text defines. ``branches``: of ``#if``, outermost first, that it stands in."""

    name: str
    branches: tuple[Branch, ...]


def mentions_kernel(source: str) -> bool:
    """Whether the word ``kernel`` or ``__kernel`` stands in the code, comments and texts aside."""
    return _KERNEL_WORD.search(without_texts(source)) is not None


def kernel_headers(source: str) -> tuple[KernelHeader, ...]:
    r"""Return the kernels that a text defines, in its order; one name can stand in several branches.

    What a macro makes is not found, nor what ``#if 0`` takes out: that is how whole functions are commented out.

    >>> [one.name for one in kernel_headers("kernel void a(int x) {}\n#ifdef G\nkernel void b() {}\n#endif")]
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
    """Return for each opening parenthesis the place of its closing one."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[()]", code):
        if match[0] == "(":
            opened.append(match.start())
        elif opened:
            found[opened.pop()] = match.start()
    return found

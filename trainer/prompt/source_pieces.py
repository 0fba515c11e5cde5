"""A source as pieces (functions, declarations, preprocessor lines), and the pieces a kernel uses.

Owns the lexical analysis for the truncation of prompts. The trainer has no parser, so the analysis
is approximate: every name in a text counts as a use, and a text with unbalanced braces gives one
long piece. A mistake only wastes or loses some context, because no compiler reads a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmperf_common.families.tokens import is_builtin, without_comments

_STRUCTURE = re.compile(
    r"""\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])*+'?|^[ \t]*\#(?:[^\n]*\\\n)*+[^\n]*\n?|[{};]""",
    re.MULTILINE,
)
_DEFINE = re.compile(r"\s*#\s*define\s+(\w+)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_INNERMOST = re.compile(r"\([^()]*\)")
_CALL = re.compile(r"(\w+)\s*\0")
_BRACES = re.compile(r"\{.*\}", re.DOTALL)
_UNDERSCORED = re.compile(
    r"\b__(kernel|global|local|constant|private|generic|read_only|write_only|read_write)\b"
)
_TO_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")
_BLANKS = re.compile(r"[ \t\f\v\r]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A top-level item of a source, with its line end.

    Attributes:
        text: text of the piece, as in the source.
        names: the names that it defines or declares.
    """

    text: str
    names: frozenset[str]


def plain_source(source: str) -> str:
    r"""Return a source without comments, blank lines and redundant white space.

    Qualifiers lose their underscores (``__kernel`` becomes ``kernel``), so that a model has to
    learn one spelling only.

    >>> plain_source("// adds\n__kernel void f(__global int *a) {\n\n  a[0]  += 1; /* one */\n}")
    'kernel void f(global int *a) {\na[0] += 1;\n}\n'
    """
    lines = (_BLANKS.sub(" ", line).strip() for line in without_comments(source).split("\n"))
    text = "\n".join(line for line in lines if line)
    return _UNDERSCORED.sub(r"\1", text) + "\n" if text else ""


def split_source(source: str) -> tuple[Piece, ...]:
    """Split a source without comments into pieces; their concatenation is the source.

    White space at the end of the source belongs to the last piece.
    """
    pieces: list[Piece] = []
    start, depth, brace = 0, 0, -1
    is_function = False
    for match in _STRUCTURE.finditer(source):
        sign = match[0]
        if sign == "{":
            if depth == 0:
                is_function = _ends_with_call(source, start, match.start())
                brace = match.end()
            depth += 1
        elif sign == "}":
            depth = max(0, depth - 1)
        ends_here = (sign == "}" and is_function) or sign == ";"
        is_directive = sign.lstrip()[:1] == "#" and not source[start : match.start()].strip()
        if depth == 0 and (ends_here or is_directive):
            end = _line_end(source, match.end())
            pieces.append(_piece(source[start:end], brace - start if is_function else 0))
            start, is_function = end, False
    rest = source[start:]
    if rest.strip() or not pieces:
        return (*pieces, _piece(rest, max(0, brace - start) if is_function else 0))
    last = pieces[-1]
    return (*pieces[:-1], Piece(text=last.text + rest, names=last.names))


def _ends_with_call(source: str, start: int, end: int) -> bool:
    return source[start:end].rstrip().endswith(")")


def _line_end(source: str, at: int) -> int:
    """Return the end of the line if only blanks follow ``at`` in it, else ``at``."""
    match = _TO_LINE_END.match(source, at)
    return match.end() if match else at


def _piece(text: str, header_length: int) -> Piece:
    header = text[:header_length]
    define = _DEFINE.match(text)
    if define:
        names = {define[1]}
    elif text.lstrip().startswith("#"):
        names = set()
    elif header:
        names = _function_names(header)
    else:
        names = words(_BRACES.sub(" ", text).split("=")[0])
    return Piece(text=text, names=frozenset(names))


def _function_names(header: str) -> set[str]:
    """Return the name that a header declares: the last ``name(...)`` that is not an attribute."""
    text, changed = header, 1
    while changed:
        text, changed = _INNERMOST.subn("\0", text)
    called = [name for name in _CALL.findall(text) if not name.startswith("__attribute")]
    return set(called[-1:])


def words(text: str) -> set[str]:
    """Return the names of a text that are not built into OpenCL C."""
    return {word for word in _WORD.findall(text) if not is_builtin(word)}


def signature_start(text: str, kernel: str) -> int | None:
    """Return where a kernel's signature begins in a ``plain_source`` text; None if it has none."""
    match = re.search(rf"\bkernel\b[^;{{}}]*\b{re.escape(kernel)}\s*\(", text)
    return match.start() if match else None


def kernel_piece(pieces: Sequence[Piece], kernel: str) -> int | None:
    """Return the index of the piece that holds the kernel, or None.

    ``pieces`` come from a text of ``plain_source``.
    """
    holding = [
        index
        for index, piece in enumerate(pieces)
        if signature_start(piece.text, kernel) is not None
    ]
    # A prototype has the same signature as the definition; only the definition has a body.
    with_body = [index for index in holding if "{" in pieces[index].text]
    return next(iter(with_body or holding), None)


def reached(pieces: Sequence[Piece], first: int) -> list[int]:
    """Return the indices of ``first`` and of all pieces that it needs, nearest first.

    A piece is needed if it defines a name that a needed piece mentions. Equally near pieces keep
    the source's order.
    """
    order, level, seen = [first], [first], {first}
    while level:
        mentioned = set().union(*(words(pieces[index].text) for index in level))
        level = [
            index
            for index, piece in enumerate(pieces)
            if index not in seen and not piece.names.isdisjoint(mentioned)
        ]
        seen.update(level)
        order += level
    return order

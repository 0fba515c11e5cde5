"""Cut a file down to what one kernel needs: remove other kernels and unused helper functions.

Decides which functions may be cut, and where their text begins and ends. The caller
(``front_end.py``) parses the shorter text and checks that it still means the same. All other text
stays byte for byte: typedefs, globals, preprocessor lines, comments outside of the cuts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmperf_common.families.tokens import COMMENT_OR_TEXT
from workers.source.clang.nodes import Function, NodeKind, ParsedSource, reachable, walk

_COMMENTS_AND_TEXTS = re.compile(COMMENT_OR_TEXT.encode(), re.DOTALL)
_DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(\w*)([^\n]*)", re.MULTILINE)
_OPENING = frozenset({b"if", b"ifdef", b"ifndef"})
_TO_LINE_END = re.compile(rb"[ \t]*;?[ \t]*(?:\r?\n(?:[ \t]*\r?\n)*|\Z)")


def prune(text: bytes, parsed: ParsedSource, kernel: Function) -> bytes | None:
    """Return ``text`` without functions that ``kernel`` does not reach; None if nothing can be cut.

    Args:
        text: the file's bytes; the offsets in ``parsed`` are byte offsets in it.
        parsed: the parsed file.
        kernel: one of its kernels.
    """
    kept = _needed_keys(parsed, kernel)
    spans = [(one.start, one.end) for one in parsed.functions.values() if one.key not in kept]
    bodies = [span for span in spans if _is_whole_function(text[slice(*span)])]
    if not bodies:
        return None
    defined = {one.key for one in parsed.functions.values() if (one.start, one.end) in bodies}
    spans = bodies + [
        (one.start, one.end)
        for one in parsed.prototypes
        if one.key in defined and _is_whole_prototype(text, one.start, one.end)
    ]
    return _without(text, sorted(spans))


def _needed_keys(parsed: ParsedSource, kernel: Function) -> set[str]:
    functions = list(reachable(parsed, kernel))
    keys = {one.key for one in functions}
    # Code can also name a function without calling it (an argument of a macro, a block).
    while functions:
        for node in walk(functions.pop().body):
            named = parsed.functions.get(node.key) if node.kind is NodeKind.REFERENCE else None
            if named is not None and named.key not in keys:
                reached = [one for one in reachable(parsed, named) if one.key not in keys]
                keys.update(one.key for one in reached)
                functions.extend(reached)
    for variable in parsed.globals.values():
        keys.update(node.key for node in walk(variable) if node.key in parsed.functions)
    return keys


def _is_whole_function(piece: bytes) -> bool:
    """Whether a range is the text of one function, in which every ``#if`` has its ``#endif``.

    If a macro makes the function, the range is the macro's call, so the answer is False.

    >>> _is_whole_function(b"int f(int x) { return x; }"), _is_whole_function(b"MADE_BY_MACRO(f)")
    (True, False)
    """
    code = _COMMENTS_AND_TEXTS.sub(b" ", piece)
    if not piece.endswith(b"}") or b"{" not in code:
        return False
    depth = 0
    for match in _DIRECTIVE.finditer(code):
        word, rest = match.groups()
        if word in _OPENING:
            depth += 1
        elif word == b"endif":
            depth -= 1
        elif word in {b"else", b"elif"}:
            if depth == 0:
                return False
        elif not (word == b"pragma" and rest.lstrip().startswith(b"unroll")):
            return False  # the effect of a definition or another pragma outlasts the function
        if depth < 0:
            return False
    return depth == 0


def _is_whole_prototype(text: bytes, start: int, end: int) -> bool:
    """Whether a range is a whole declaration; in ``int f(int), g;`` both names share one type."""
    piece = _COMMENTS_AND_TEXTS.sub(b" ", text[start:end])
    before = _COMMENTS_AND_TEXTS.sub(b" ", text[max(0, start - 256) : start]).rstrip()
    after = text[end : end + 64].lstrip()
    starts_alone = not before or before[-1:] in b";}" or _ends_with_directive(text, start)
    whole = piece.endswith(b")") and piece.count(b"(") == piece.count(b")") and b"#" not in piece
    return whole and starts_alone and after.startswith(b";")


def _ends_with_directive(text: bytes, start: int) -> bool:
    lines = text[:start].rstrip().splitlines()
    return bool(lines) and _DIRECTIVE.match(lines[-1]) is not None


def _without(text: bytes, spans: Iterable[tuple[int, int]]) -> bytes | None:
    kept = []
    position = 0
    for start, end in spans:
        if start < position:
            return None  # functions overlap only if one macro defines both
        kept.append(text[position:start])
        tail = _TO_LINE_END.match(text, end)
        begins_line = not text[:start].rpartition(b"\n")[2].strip()
        # Other code on the line of a cut stays. A line that becomes empty is removed together with
        # the blank lines below it.
        position = tail.end() if tail and begins_line else _after_semicolon(text, end)
    kept.append(text[position:])
    return b"".join(kept)


def _after_semicolon(text: bytes, end: int) -> int:
    match = re.compile(rb"[ \t]*;").match(text, end)
    return match.end() if match else end

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
_TO_SEMICOLON = re.compile(rb"[ \t]*;")
_TO_LINE_END = re.compile(rb"[ \t]*;?[ \t]*(?:\r?\n(?:[ \t]*\r?\n)*|\Z)")


class Pruner:
    """Prunes one parsed text for its kernels; what depends on the text alone is found once."""

    def __init__(self, text: bytes, parsed: ParsedSource) -> None:
        """Take the file's bytes and its parse, whose offsets count the bytes of ``text``."""
        self._text = text
        self._parsed = parsed
        self._keys_of_span: dict[tuple[int, int], list[str]] = {}
        for one in parsed.functions.values():
            self._keys_of_span.setdefault((one.start, one.end), []).append(one.key)
        self._whole = [
            one
            for one in parsed.functions.values()
            if _is_whole_function(text[one.start : one.end])
        ]
        self._prototypes = [
            one for one in parsed.prototypes if _is_whole_prototype(text, one.start, one.end)
        ]
        self._named_by_globals = frozenset(
            node.key
            for variable in parsed.globals.values()
            for node in walk(variable)
            if node.key in parsed.functions
        )
        self._ends: dict[tuple[int, int], int] = {}

    def prune(self, kernel: Function) -> bytes | None:
        """Return the text without functions that ``kernel`` does not reach; None if it has none."""
        kept = self._needed_keys(kernel)
        spans = [(one.start, one.end) for one in self._whole if one.key not in kept]
        if not spans:
            return None
        if self._prototypes:
            defined = {key for span in spans for key in self._keys_of_span[span]}
            spans += [(one.start, one.end) for one in self._prototypes if one.key in defined]
        return self._without(sorted(spans))

    def _needed_keys(self, kernel: Function) -> set[str]:
        parsed = self._parsed
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
        return keys | self._named_by_globals

    def _without(self, spans: Iterable[tuple[int, int]]) -> bytes | None:
        kept = []
        position = 0
        for start, end in spans:
            if start < position:
                return None  # functions overlap only if one macro defines both
            kept.append(self._text[position:start])
            position = self._end_of_cut(start, end)
        kept.append(self._text[position:])
        return b"".join(kept)

    def _end_of_cut(self, start: int, end: int) -> int:
        known = self._ends.get((start, end))
        if known is None:
            tail = _TO_LINE_END.match(self._text, end)
            line_start = self._text.rfind(b"\n", 0, start) + 1
            begins_line = not self._text[line_start:start].strip()
            # Other code on the line of a cut stays. A line that becomes empty is removed together
            # with the blank lines below it.
            known = tail.end() if tail and begins_line else _after_semicolon(self._text, end)
            self._ends[start, end] = known
        return known


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
    end = start
    while end and text[end - 1 : end].isspace():
        end -= 1
    line_start = text.rfind(b"\n", 0, end) + 1
    line_start = max(line_start, text.rfind(b"\r", line_start, end) + 1)
    return _DIRECTIVE.match(text[line_start:end]) is not None


def _after_semicolon(text: bytes, end: int) -> int:
    match = _TO_SEMICOLON.match(text, end)
    return match.end() if match else end

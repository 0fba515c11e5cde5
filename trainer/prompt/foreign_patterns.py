"""Checks of regular expressions from an untrusted place, before ``tokenizers`` uses them.

The library's engine tries all ways to match, so an expression such as ``(a|a){30}b`` takes hours on
a short text. Owns the rule for which expressions are refused: those of known tokenizers repeat no
group of alternatives and have few unbounded repetitions in one alternative, so that the time grows
at most with the square of a text's length.
"""

from __future__ import annotations

import re

_MOST_CHARACTERS = 2_000
"""Maximum length of an expression; GPT-4o's has 250 characters, DeepSeek's longest 500."""
_MOST_UNBOUNDED = 2
"""Maximum number of ``*``, ``+`` and ``{n,}`` in one alternative, groups included."""
_MOST_WAYS = 100_000
"""Maximum number of ways to match that the library may try at one place of a text. It is estimated
for each alternative, as the product of the upper bounds of its repetitions, 2 for each ``?``, and
the number of alternatives of each group."""

_PART = re.compile(
    r"""\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)  # an escape
    | \[ | \((?:\?(?:[imx-]*[:)]|<?[=!]|.))? | \) | \|
    | [*+?] | \{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\}
    | .""",
    re.VERBOSE | re.DOTALL,
)
_BACK_REFERENCE = re.compile(r"\\[1-9kg]")
_KNOWN_GROUP = re.compile(r"\((?:\?(?:[imx-]*[:)]|<?[=!]))?")
_REPETITIONS = ("*", "+", "?", "{")


def check_pattern(pattern: str) -> None:
    r"""Raise ValueError for an expression that could take long.

    >>> check_pattern(r"'s|'t| ?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+")
    >>> check_pattern("(a|a){30}b")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: the regular expression '(a|a){30}b' of its tokenizer could take long: ...
    """
    try:
        if len(pattern) > _MOST_CHARACTERS:
            raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
        _Scan(pattern).run()
    except ValueError as error:
        raise ValueError(
            f"the regular expression {pattern[:60]!r} of its tokenizer could take long: {error}"
        ) from None


class _Scan:
    """One pass over an expression, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._num_unbounded = 0
        self._num_ways = 1
        self._before = ""
        """The kind of the part before: a repetition, a parenthesis, or another text."""
        self._varies = [False]
        """For each open group, whether texts of different lengths match it."""
        self._alternatives = [1]
        """For each open group, the number of its alternatives."""
        self._closed_varies = False

    def run(self) -> None:
        """Raise ValueError with the reason for which the expression could take long."""
        while self._place < len(self._pattern):
            part = _PART.match(self._pattern, self._place)
            assert part is not None, "any character matches"
            text, self._place = part.group(), part.end()
            if text == "[":
                self._place = _end_of_class(self._pattern, part.start())
            elif text.startswith("("):
                self._open(text)
            elif text == ")" and len(self._varies) > 1:
                self._closed_varies = self._varies.pop()
                self._varies[-1] |= self._closed_varies
                self._try(self._alternatives.pop())
            elif text == "|":
                if len(self._varies) == 1:
                    self._num_unbounded, self._num_ways = 0, 1
                self._varies[-1] = True
                self._alternatives[-1] += 1
            elif text in _REPETITIONS or part["least"] is not None:
                text = self._repeat(text, part)
            elif _BACK_REFERENCE.match(text):
                raise ValueError("it refers back to a group")
            self._before = text

    def _open(self, text: str) -> None:
        if not _KNOWN_GROUP.fullmatch(text):
            raise ValueError("it has a group of an unknown kind")
        if not text.endswith(")"):
            self._varies.append(False)
            self._alternatives.append(1)

    def _try(self, num_ways: int) -> None:
        self._num_ways *= num_ways
        if self._num_ways > _MOST_WAYS:
            raise ValueError(f"it allows more than {_MOST_WAYS} ways to match at each place")

    def _repeat(self, text: str, part: re.Match[str]) -> str:
        """Note a repetition; return its kind."""
        # Directly after a repetition, ``?`` and ``+`` repeat nothing: they set the order of tries.
        if self._before in _REPETITIONS and not (
            text == "?" or (text == "+" and self._before != "{")
        ):
            raise ValueError("it repeats a repetition")
        if self._before in _REPETITIONS:
            return text
        is_counted = part["least"] is not None
        most = (part["most"] if part["comma"] else part["least"]) if is_counted else ""
        is_unbounded = text in ("*", "+") or (is_counted and not most)
        if self._before == ")" and self._closed_varies and text != "?":
            raise ValueError("it repeats a group that matches texts of different lengths")
        self._try(2 if text == "?" else max(1, int(most or 1)))
        self._varies[-1] |= not is_counted or bool(part["comma"])
        self._num_unbounded += is_unbounded
        if self._num_unbounded > _MOST_UNBOUNDED:
            raise ValueError(
                f"an alternative has more than {_MOST_UNBOUNDED} unbounded repetitions"
            )
        return "{" if is_counted else text


def _end_of_class(pattern: str, start: int) -> int:
    """Return the place after a set of characters, which may hold other sets."""
    depth, place = 0, start
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[":
            depth += 1
        elif pattern[place] == "]":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    raise ValueError("a set of characters has no end")

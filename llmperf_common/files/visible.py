r"""Escaping of untrusted text for a terminal or a dataset card: control characters become visible.

Owns the maximum length of a foreign text in a message, and the list of escaped characters: control
characters (ANSI and OSC sequences begin with one, a carriage return can overwrite a line),
bidirectional controls, invisible characters, unusual line ends, and lone surrogates, which cannot
be encoded.
"""

from __future__ import annotations

import re

_ALWAYS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb"
_BUT_LINES = re.compile(f"[{_ALWAYS}]")
_ALL = re.compile(f"[\t\n{_ALWAYS}]")
_IN_JSON = re.compile("[\x7f-\uffff]")
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>()#+!|~&$-]")
_FORGED = re.compile(r"\n(?=\S)")


_MOST_SHOWN = 80
"""Maximum number of characters of a foreign name or value in a message."""


def shortened(text: str) -> str:
    """Return a foreign text for a message; only the beginning of a text that is too long.

    >>> shortened("saxpy"), len(shortened("x" * 200_000))
    ('saxpy', 82)
    """
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def shown_value(value: object) -> str:
    """Return the ``repr`` of a foreign value, shortened for a message.

    >>> shown_value({64}), shown_value([10**5000])
    ('{64}', '(a list that is too large to show)')
    """
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # thousands of digits, or nested thousands of times
        return f"(a {type(value).__name__} that is too large to show)"


def visible(text: str) -> str:
    r"""Return ``text`` as one line with control and invisible characters escaped.

    >>> visible("a\x1b[31mb\rc\nd\u202e")
    'a\\x1b[31mb\\x0dc\\nd\\u202e'
    """
    return _ALL.sub(_code, text)


def visible_lines(text: str) -> str:
    r"""Return escaped ``text``; later lines are indented, so that none looks like LLMPerf's own.

    >>> visible_lines("cannot read x\nllmperf: done\x07")
    'cannot read x\n  llmperf: done\\x07'
    """
    return _FORGED.sub("\n  ", _BUT_LINES.sub(_code, text))


def visible_json(text: str) -> str:
    r"""Return a JSON document with control and invisible characters escaped; its value is the same.

    >>> visible_json('"\u202ex"')
    '"\\u202ex"'
    """
    return _IN_JSON.sub(
        lambda found: f"\\u{ord(found[0]):04x}" if _ALL.match(found[0]) else found[0], text
    )


def in_markdown(text: str) -> str:
    r"""Return ``text`` as one line of Markdown with all Markdown and HTML syntax escaped.

    >>> in_markdown("<script>a|b")
    '&lt;script&gt;a\\|b'
    """
    return _MARKDOWN.sub(r"\\\g<0>", visible(text)).replace("\\<", "&lt;").replace("\\>", "&gt;")


def in_code(text: str) -> str:
    """Return ``text`` as a Markdown code span; a backtick, which would end it, becomes a quote.

    >>> in_code("a`b|c")
    "`a'b/c`"
    """
    return f"`{visible(text).replace('`', chr(39)).replace('|', '/')}`"


def _code(found: re.Match[str]) -> str:
    character = found[0]
    if character in "\t\n":
        return "\\t" if character == "\t" else "\\n"
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

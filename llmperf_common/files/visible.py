r"""Text of others on its way to a terminal or a card: what would be obeyed there is shown instead.

Owns which characters those are: control characters (ANSI and OSC sequences begin with one, a carriage return forges a
line), bidirectional controls, invisible ones, other line ends, and halves of characters, which cannot be written.
"""

from __future__ import annotations

import re

_ALWAYS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb"
_BUT_LINES = re.compile(f"[{_ALWAYS}]")
_ALL = re.compile(f"[\t\n{_ALWAYS}]")
_IN_JSON = re.compile("[\x7f-\uffff]")
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>()#+!|~&$-]")
_FORGED = re.compile(r"\n(?=\S)")


def visible(text: str) -> str:
    r"""Return ``text`` in one line in which nothing is obeyed.

    >>> visible("a\x1b[31mb\rc\nd\u202e")
    'a\\x1b[31mb\\x0dc\\nd\\u202e'
    """
    return _ALL.sub(_code, text)


def visible_lines(text: str) -> str:
    r"""Return ``text`` of several lines, of which the later ones are indented: none looks like one of ours.

    >>> visible_lines("cannot read x\nllmperf: done\x07")
    'cannot read x\n  llmperf: done\\x07'
    """
    return _FORGED.sub("\n  ", _BUT_LINES.sub(_code, text))


def visible_json(text: str) -> str:
    r"""Return a JSON document with such characters written as JSON writes them; its value stays.

    >>> visible_json('"\u202ex"')
    '"\\u202ex"'
    """
    return _IN_JSON.sub(
        lambda found: f"\\u{ord(found[0]):04x}" if _ALL.match(found[0]) else found[0], text
    )


def in_markdown(text: str) -> str:
    r"""Return ``text`` as it stands in Markdown: in one line, nothing in it a sign or an element.

    >>> in_markdown("<script>a|b")
    '&lt;script&gt;a\\|b'
    """
    return _MARKDOWN.sub(r"\\\g<0>", visible(text)).replace("\\<", "&lt;").replace("\\>", "&gt;")


def in_code(text: str) -> str:
    """Return ``text`` as a span of code in Markdown; a backtick in it would end the span.

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

"""Make the source text that a device's compiler gets, so that the text cannot name another file.

Owns the last check before a compiler. A directive that would read a file becomes an error in its
branch, inline assembly becomes an error wherever it is used, and a source cannot test whether a
file exists. A source without such directives and words is not changed. The parser needs no such
check, because it cannot open any file (``clang/parse.py``).
"""

from __future__ import annotations

import re

_TRIGRAPHS = {"??=": "#", "??/": "\\"}
_TRIGRAPH = re.compile(r"\?\?[=/]")
_SPLICE = re.compile(r"\\[^\S\n]*\n")
_NEWLINE = re.compile(r"\r\n?")
_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<text>"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?)
  | (?P<sign>\#|%:)
  | (?P<word>[A-Za-z_$]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_BLANK = re.compile(r"(?:[^\S\n]|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_NAME = re.compile(r"[\w$]*")
_TO_LINE_END = re.compile(
    r"""(?:/\*.*?(?:\*/|\Z)|//[^\n]*|"(?:\\[^\n]|[^"\\\n])*+"?|'(?:\\[^\n]|[^'\\\n])*+'?|[^\n])*""",
    re.DOTALL,
)
_HARMLESS_DIRECTIVES = frozenset(
    {
        "", "define", "elif", "elifdef", "elifndef", "else", "endif", "if", "ifdef", "ifndef",
        "line", "pragma", "undef",
    }
)  # fmt: skip
_MESSAGE_DIRECTIVES = frozenset({"error", "warning"})
"""Directives in whose text a comment begins for some compilers only."""
_NOT_IN_A_MESSAGE = re.compile(r"[^\w .,:;()<>=+/-]|/(?=/)")
_REFUSED_PRAGMA = re.compile(r"\b(?:dependency|module|include_alias|pch_preprocess|__debug)\b")
_REFUSED_PRAGMA_IN_CODE = re.compile(
    r"\bdependency\b|\binclude_alias\b|\bclang(?:\s|/\*[^*/]*\*/)+(?:module|__debug)\b"
)
"""Texts that refuse all ``_Pragma`` of a source. Macros may join a pragma of other pieces; a
``__debug`` made in this way ends at most the compiler's own child process."""
_ASSEMBLY = frozenset({"asm", "__asm", "__asm__"})
_QUESTIONS = frozenset({"__has_include", "__has_include_next", "__has_embed", "__has_include__"})
_RESERVED = tuple([word] for word in _ASSEMBLY | _QUESTIONS)
_SUSPECT = re.compile(
    r"include|import|embed|asm|__has_|dependency|module|pch_|__debug|\#\#|%:%:"
    r"|^[^\S\n]*(?:\#|%:)[^\S\n]*"
    r"(?!(?:define|undef|if|ifdef|ifndef|elif|elifdef|elifndef|else|endif|line|pragma"
    r"|error|warning|\d+)\b|$)[^\s]",
    re.MULTILINE,
)
_READ_ALIKE = re.compile(r"[\x00\ufeff\x1a]|\r(?!\n)|\?\?[=/]|\\[^\S\n]+\n|[^\S \t\n\r\f\v]")
"""Characters that only some compilers read as white space, a new line or a sign."""
_WITHOUT_ASSEMBLY = "".join(
    f'#define {word} "inline assembly is refused" 0\n' for word in sorted(_ASSEMBLY)
)
"""Replaces each assembly keyword by text that is not valid code. The text contains no name that a
source could define, so no source can make it valid."""
_WITHOUT_QUESTIONS = "".join(f"#undef {word}\n" for word in sorted(_QUESTIONS))
_QUIETLY = (
    "#ifdef __clang__\n#pragma clang diagnostic push\n"
    '#pragma clang diagnostic ignored "-Wbuiltin-macro-redefined"\n#endif\n'
    f"{_WITHOUT_QUESTIONS}#ifdef __clang__\n#pragma clang diagnostic pop\n#endif\n"
)


def compiler_text(source: str, options: str = "") -> str:
    r"""Return the text that a compiler may get for ``source``; lines keep their numbers.

    Args:
        source: OpenCL C.
        options: the source's build options; their macros may contain words to check, too.

    >>> compiler_text('#include "/etc/passwd"\nint x;')
    '#error not in the corpus: include  /etc/passwd\nint x;'
    >>> compiler_text("kernel void k() {}")
    'kernel void k() {}'
    """
    joined = _joined(source)
    if not (_SUSPECT.search(joined) or _SUSPECT.search(options) or _READ_ALIKE.search(source)):
        return source
    text, words = _sanitised(joined)
    words |= set(re.findall(r"\w+", options))
    pastes = "##" in joined or "%:%:" in joined or "#" in options or "%:" in options
    before = _WITHOUT_ASSEMBLY if pastes or words & _ASSEMBLY else ""
    before += _QUIETLY if pastes or words & _QUESTIONS else ""
    return f"{before}#line 1\n{text}" if before else text


def _joined(source: str) -> str:
    """Return ``source`` with continued lines joined; added empty lines keep the line numbers."""
    text = _NEWLINE.sub("\n", source.replace("\0", " ").replace("\ufeff", " ").replace("\x1a", " "))
    while True:
        with_signs = _TRIGRAPH.sub(lambda found: _TRIGRAPHS[found[0]], text)
        pieces = _SPLICE.split(with_signs)
        lines: list[str] = [pieces[0]]
        owed = 0
        for piece in pieces[1:]:
            owed += 1
            head, newline, rest = piece.partition("\n")
            lines.append(head)
            if newline:
                lines.append("\n" * (owed + 1) + rest)
                owed = 0
        joined = "".join(lines) + "\n" * owed
        if joined == text:
            return text
        text = joined


def _sanitised(text: str) -> tuple[str, set[str]]:
    """Return ``text`` without comments and file-reading directives, and the words of its code."""
    pieces: list[str] = []
    words: set[str] = set()
    has_pragma = "_Pragma" in text and _REFUSED_PRAGMA_IN_CODE.search(text) is not None
    done = 0
    begins_line = True
    while found := _TOKEN.search(text, done):
        before, piece = text[done : found.start()], found[0]
        begins_line = _leaves_line_blank(before, begins_line)
        done = found.end()
        if found["comment"]:
            piece = " " + _newlines(piece)
        elif found["sign"] and begins_line:
            piece, done = _directive(text, found)
        elif found["word"]:
            words.add(piece)
            if has_pragma and piece == "_Pragma":
                piece = ' "this pragma is refused" 0 '
        begins_line = _leaves_line_blank(piece, begins_line)
        pieces += [before, piece]
    pieces.append(text[done:])
    return "".join(pieces), words


def _leaves_line_blank(piece: str, was_blank: bool) -> bool:
    _, newline, last = piece.rpartition("\n")
    return not last.strip() and (bool(newline) or was_blank)


def _directive(text: str, found: re.Match[str]) -> tuple[str, int]:
    """Return what replaces the text from the sign ``found`` on, and where that part ends."""
    between = _BLANK.match(text, found.end())
    assert between is not None, "the pattern matches an empty string, too"
    name = _NAME.match(text, between.end())
    assert name is not None, "the pattern matches an empty string, too"
    whole = _TO_LINE_END.match(text, name.end())
    assert whole is not None, "the pattern matches an empty string, too"
    word, rest = name[0], _COMMENT.sub(" ", whole[0])
    is_harmless = word in _HARMLESS_DIRECTIVES or word.isdecimal()
    if word == "pragma":
        is_harmless = _REFUSED_PRAGMA.search(rest) is None
    elif word in {"define", "undef"}:
        is_harmless = re.findall(r"[\w$]+", rest)[:1] not in _RESERVED
    if is_harmless:
        return f"{_newlines(between[0])}#{word}", name.end()
    message = _NOT_IN_A_MESSAGE.sub(" ", rest).rstrip()
    if word not in _MESSAGE_DIRECTIVES:
        word, message = "error", f" not in the corpus: {_NOT_IN_A_MESSAGE.sub(' ', word)}{message}"
    return f"#{word}{message}{_newlines(between[0] + whole[0])}", whole.end()


def _newlines(text: str) -> str:
    return "\n" * text.count("\n")

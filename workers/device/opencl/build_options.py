"""The words of a kernel's build options, and which of them matter before a device sees it.

Owns their splitting, and the list of those that a device's compiler may be handed: a corpus of a stranger names them, and
others read files. Options with a quote that is never closed are split at blanks: they are refused with a code
(``session.py``), nothing before it stumbles over them.
"""

from __future__ import annotations

import re
import shlex

_MACRO = re.compile(
    r"[A-Za-z_]\w*(?:\([\w,.]*\))?(?:=[!#%&()*+,\-./:;<=>?\[\]^\w{|}~]*)?", re.ASCII
)
"""Runtimes split what they are handed once more, at blanks and at quotes of their own: neither is in here."""
_KNOWN = re.compile(
    r"-cl-std=CL\d\.\d|-w|-Werror"
    r"|-cl-(?:single-precision-constant|denorms-are-zero|fp32-correctly-rounded-divide-sqrt|opt-disable|strict-aliasing"
    r"|uniform-work-group-size|no-subgroup-ifp|mad-enable|no-signed-zeros|unsafe-math-optimizations|finite-math-only"
    r"|fast-relaxed-math|kernel-arg-info)"
    r"|-cl-nv-(?:verbose|maxrregcount=\d+|opt-level=\d|allow-expensive-optimizations)"
    r"|-cl-intel-(?:256-GRF-per-thread|128-GRF-per-thread|greater-than-4GB-buffer-required)",
    re.ASCII,
)


def option_words(build_options: str) -> tuple[str, ...]:
    """Return the words as a shell would.

    >>> option_words("-DA='1 2' -w"), option_words("-DA='1 2")
    (('-DA=1 2', '-w'), ("-DA='1", '2'))
    """
    try:
        return tuple(shlex.split(build_options))
    except ValueError:
        return tuple(build_options.split())


def refused_option(build_options: str) -> str | None:
    """Return the first word that no compiler is handed; None if there is none.

    >>> refused_option("-DN=4 -D M -cl-fast-relaxed-math"), refused_option("-DN=4 -I/etc")
    (None, '-I/etc')
    """
    words = iter(option_words(build_options))
    for word in words:
        if word in {"-D", "-U"}:
            value = next(words, "")
            if _MACRO.fullmatch(value) is None:
                return f"{word} {value}"
        elif word.startswith(("-D", "-U")):
            if _MACRO.fullmatch(word[2:]) is None:
                return word
        elif _KNOWN.fullmatch(word) is None:
            return word
    return None


def parser_options(build_options: str) -> tuple[str, ...]:
    """Keep what the parser needs of a device compiler's options: macros and the standard.

    >>> parser_options("-DN=4 -D M -cl-fast-relaxed-math -cl-std=CL1.2")
    ('-DN=4', '-D', 'M', '-cl-std=CL1.2')
    """
    kept: list[str] = []
    words = iter(option_words(build_options))
    for word in words:
        if word in {"-D", "-U"}:
            value = next(words, None)
            kept += [word, value] if value is not None else []
        elif word.startswith(("-D", "-U", "-cl-std=")):
            kept.append(word)
    return tuple(kept)

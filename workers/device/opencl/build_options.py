"""The words of a kernel's build options, and which of them a parser or a device's compiler may get.

Splits options into words, and owns the list of allowed options. The list is needed because a corpus
is untrusted, and other options read files. Options with an unclosed quote are split at blanks;
``session.py`` refuses them later, with a failure code.
"""

from __future__ import annotations

import re
import shlex

_MACRO = re.compile(
    r"[A-Za-z_]\w*(?:\([\w,.]*\))?(?:=[!#%&()*+,\-./:;<=>?\[\]^\w{|}~]*)?", re.ASCII
)
"""A macro without blanks or quotes, because runtimes split the options again by their own rules."""
_KNOWN = re.compile(
    r"-cl-std=CL\d\.\d|-w|-Werror"
    r"|-cl-(?:single-precision-constant|denorms-are-zero|fp32-correctly-rounded-divide-sqrt"
    r"|opt-disable|strict-aliasing|uniform-work-group-size|no-subgroup-ifp|mad-enable"
    r"|no-signed-zeros|unsafe-math-optimizations|finite-math-only|fast-relaxed-math"
    r"|kernel-arg-info)"
    r"|-cl-nv-(?:verbose|maxrregcount=\d+|opt-level=\d|allow-expensive-optimizations)"
    r"|-cl-intel-(?:256-GRF-per-thread|128-GRF-per-thread|greater-than-4GB-buffer-required)",
    re.ASCII,
)


def option_words(build_options: str) -> tuple[str, ...]:
    """Return the words of the options, split as a shell does.

    >>> option_words("-DA='1 2' -w"), option_words("-DA='1 2")
    (('-DA=1 2', '-w'), ("-DA='1", '2'))
    """
    try:
        return tuple(shlex.split(build_options))
    except ValueError:
        return tuple(build_options.split())


def refused_option(build_options: str) -> str | None:
    """Return the first option that no compiler may get; None if all are allowed.

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
    """Return the options that the parser needs: macros and the OpenCL C standard.

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

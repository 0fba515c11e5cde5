"""The words of a kernel's build options, and which of them matter before a device sees it.

Owns their splitting. Options with a quote that is never closed are split at blanks: the device's compiler refuses
them with a code (``device/opencl.py``), nothing before it stumbles over them.
"""

from __future__ import annotations

import shlex


def option_words(build_options: str) -> tuple[str, ...]:
    """Return the words as a shell would.

    >>> option_words("-DA='1 2' -w"), option_words("-DA='1 2")
    (('-DA=1 2', '-w'), ("-DA='1", '2'))
    """
    try:
        return tuple(shlex.split(build_options))
    except ValueError:
        return tuple(build_options.split())


def parser_options(build_options: str) -> tuple[str, ...]:
    """Keep what the parser needs of a device compiler's options: macros, include folders, the standard.

    >>> parser_options("-DN=4 -D M -cl-fast-relaxed-math -cl-std=CL1.2")
    ('-DN=4', '-D', 'M', '-cl-std=CL1.2')
    """
    kept: list[str] = []
    words = iter(option_words(build_options))
    for word in words:
        if word in {"-D", "-U", "-I"}:
            value = next(words, None)
            kept += [word, value] if value is not None else []
        elif word.startswith(("-D", "-U", "-I", "-cl-std=")):
            kept.append(word)
    return tuple(kept)

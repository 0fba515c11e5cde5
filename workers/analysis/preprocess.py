"""Expand the macros of a kernel file, so that every access stands in the text where it can be rewritten.

Owns the preprocessor's predefined macros: those of an OpenCL C 1.2 device with doubles. pcpp (a C99
preprocessor in Python) does the work; libclang offers no preprocessed text.
"""

from __future__ import annotations

import io
from typing import Any

from pcpp import Action, OutputDirective, Preprocessor

from workers.build_options import parser_options

MAX_EXPANDED_CHARACTERS = 4 * 2**20
MAX_EXPANDED_TOKENS = 2**16
"""A larger expansion is a macro bomb, not a kernel."""

_PREDEFINED = (
    "__OPENCL_VERSION__ 120",
    "__OPENCL_C_VERSION__ 120",
    "__OPENCL__ 1",
    "CL_VERSION_1_0 100",
    "CL_VERSION_1_1 110",
    "CL_VERSION_1_2 120",
    "__ENDIAN_LITTLE__ 1",
    "cl_khr_fp64 1",
    "cl_khr_byte_addressable_store 1",
    "cl_khr_global_int32_base_atomics 1",
    "cl_khr_global_int32_extended_atomics 1",
    "cl_khr_local_int32_base_atomics 1",
    "cl_khr_local_int32_extended_atomics 1",
    "cl_khr_int64_base_atomics 1",
    "cl_khr_int64_extended_atomics 1",
)


class ExpansionError(Exception):
    """The preprocessor could not make sense of the text; the message says where."""


class _Preprocessor(Preprocessor):  # type: ignore[misc]
    """Keeps ``#line`` directives (places are told in the file's own lines), opens no file and drops includes."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.line_directive = "#line"

    def expand_macros(self, tokens: Any, *arguments: Any, **more: Any) -> Any:
        expanded = super().expand_macros(tokens, *arguments, **more)
        if len(expanded) > MAX_EXPANDED_TOKENS:
            raise ExpansionError(f"a macro expands to over {MAX_EXPANDED_TOKENS} tokens")
        return expanded

    def on_error(self, file: str, line: int, message: str) -> None:
        del file
        self.errors.append(f"line {line}: {message}")

    def on_file_open(self, _is_system_include: bool, include_path: str) -> Any:
        raise FileNotFoundError(include_path)  # asked for whatever lies in the working directory

    def on_include_not_found(self, *_arguments: Any) -> None:
        raise OutputDirective(Action.IgnoreAndRemove)

    def on_comment(self, _token: Any) -> bool:
        return False


class _BoundedText(io.StringIO):
    def write(self, text: str) -> int:
        if self.tell() + len(text) > MAX_EXPANDED_CHARACTERS:
            raise ExpansionError(f"its macros expand to over {MAX_EXPANDED_CHARACTERS} characters")
        return super().write(text)


def expand_macros(source: str, build_options: str = "") -> str:
    r"""Return the text with every macro expanded, comments removed and conditional parts chosen.

    ``#pragma`` lines stay; lines of the original are told by ``#line`` directives.

    Args:
        source: OpenCL C text.
        build_options: as for the device's compiler; its ``-D`` and ``-U`` are used.

    Raises:
        ExpansionError: A directive is malformed, or the expansion is enormous.

    >>> expand_macros("#define AT(i) a[(i) * 4]\nint f(int *a) { return AT(1); }").split("{")[1]
    ' return a[(1) * 4]; }\n'
    """
    preprocessor = _Preprocessor()
    for macro in _PREDEFINED:
        preprocessor.define(macro)
    words = iter(parser_options(build_options))
    for word in words:
        option, value = word[:2], word[2:] or (next(words, "") if len(word) == 2 else "")
        if option == "-D":
            name, _, body = value.partition("=")
            preprocessor.define(f"{name} {body or '1'}")
        elif option == "-U":
            preprocessor.undef(value)
    text = _BoundedText()
    try:
        preprocessor.parse(source, "kernel.cl")
        preprocessor.write(text)
    except ExpansionError:
        raise
    except Exception as error:  # pcpp stumbles over malformed directives in ways of its own
        raise ExpansionError(f"its directives make no sense ({type(error).__name__})") from error
    if preprocessor.errors:
        raise ExpansionError("; ".join(preprocessor.errors[:3]))
    return text.getvalue()

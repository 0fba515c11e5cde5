"""Expand the macros of a kernel file, so that every access stands in the text where it can be rewritten.

Owns the preprocessor's predefined macros: those of an OpenCL C 1.2 device with doubles. pcpp (a C99
preprocessor in Python) does the work; libclang offers no preprocessed text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from pcpp import Action, OutputDirective, Preprocessor

from workers.device.opencl.build_options import parser_options

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
_ANOTHER_DEVICE = (
    "__OPENCL_VERSION__ 300",
    "__OPENCL_C_VERSION__ 300",
    "CL_VERSION_2_0 200",
    "CL_VERSION_3_0 300",
    "__IMAGE_SUPPORT__ 1",
    "__FAST_RELAXED_MATH__ 1",
    "__clang__ 1",
    "__GPU__ 1",
    "cl_khr_3d_image_writes 1",
    "cl_khr_fp16 1",
    "cl_khr_subgroups 1",
    "cl_nv_compiler_options 1",
    "cl_nv_pragma_unroll 1",
)
"""Macros that some devices have, or have other values for."""
_DEVICE_MACRO = re.compile(
    r"\b(?:__OPENCL_\w+|CL_VERSION_\w+|__IMAGE_SUPPORT__|__FAST_\w+|__clang__|__GPU__|cl_(?:khr|nv)_\w+)"
)
_DIRECTIVE_LINE = re.compile(r"^[ \t]*#.*$|\s+", re.MULTILINE)


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


def varies_by_device(source: str, build_options: str = "") -> bool:
    r"""Whether another device's macros leave other code: what is found on one device is then not true of all.

    >>> varies_by_device("#if __OPENCL_VERSION__ >= 200\nint twice;\n#endif\nint one;")
    True
    >>> varies_by_device("#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\nint one;")
    False
    """
    if _DEVICE_MACRO.search(source) is None:
        return False
    try:
        here, there = (
            _DIRECTIVE_LINE.sub(" ", expand_macros(source, build_options, more)).split()
            for more in ((), _ANOTHER_DEVICE)
        )
    except ExpansionError:  # malformed for one of them
        return True
    return here != there


def expand_macros(source: str, build_options: str = "", predefined: Sequence[str] = ()) -> str:
    r"""Return the text with every macro expanded, comments removed and conditional parts chosen.

    ``#pragma`` lines stay; lines of the original are told by ``#line`` directives.

    Args:
        source: OpenCL C text.
        build_options: as for the device's compiler; its ``-D`` and ``-U`` are used.
        predefined: macros of a device beyond the usual ones, ``name value`` each.

    Raises:
        ExpansionError: A directive is malformed, or the expansion is enormous.

    >>> expand_macros("#define AT(i) a[(i) * 4]\nint f(int *a) { return AT(1); }").split("{")[1]
    ' return a[(1) * 4]; }\n'
    """
    preprocessor = _Preprocessor()
    for macro in (*_PREDEFINED, *predefined):
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

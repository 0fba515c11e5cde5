"""Expand the macros of a kernel file, so that every access is in the text and can be rewritten.

Owns the preprocessor's predefined macros, which are those of an OpenCL C 1.2 device with doubles.
Uses pcpp (a C99 preprocessor in Python), because libclang gives no preprocessed text.
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
"""Maximum number of tokens. A larger expansion is a macro bomb, not a kernel."""

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
"""Macros that only some devices define, or define with other values."""
_DEVICE_MACRO = re.compile(
    r"\b(?:__OPENCL_\w+|CL_VERSION_\w+|__IMAGE_SUPPORT__|__FAST_\w+|__clang__|__GPU__"
    r"|cl_(?:khr|nv)_\w+)"
)
_DIRECTIVE_LINE = re.compile(r"^[ \t]*#.*$|\s+", re.MULTILINE)


class ExpansionError(Exception):
    """The text cannot be preprocessed; the message says where."""


class _Preprocessor(Preprocessor):  # type: ignore[misc]
    """Writes ``#line`` directives, which keep the line numbers of the file; reads no other file."""

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
        raise FileNotFoundError(include_path)  # pcpp would read files of the working directory

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
    r"""Whether the macros of another device select other code, so that one device is not enough.

    >>> varies_by_device("#if __OPENCL_VERSION__ >= 200\nint twice;\n#endif\nint one;")
    True
    >>> varies_by_device("#ifdef cl_khr_fp16\n#pragma OPENCL FP_CONTRACT ON\n#endif\nint one;")
    False
    """
    if _DEVICE_MACRO.search(source) is None:
        return False
    try:
        here, there = (
            _DIRECTIVE_LINE.sub(" ", expand_macros(source, build_options, more)).split()
            for more in ((), _ANOTHER_DEVICE)
        )
    except ExpansionError:  # malformed on one of the two devices
        return True
    return here != there


def expand_macros(source: str, build_options: str = "", predefined: Sequence[str] = ()) -> str:
    r"""Return the text with macros expanded, comments removed and conditional parts selected.

    ``#pragma`` lines stay; ``#line`` directives give the line numbers of the original.

    Args:
        source: OpenCL C text.
        build_options: options for the device's compiler; only ``-D`` and ``-U`` have an effect.
        predefined: macros of a device beyond the usual ones, each as ``name value``.

    Raises:
        ExpansionError: A directive is malformed, or the expansion is too large.

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
    except Exception as error:  # pcpp raises many kinds of exceptions for malformed directives
        raise ExpansionError(f"a directive is malformed ({type(error).__name__})") from error
    if preprocessor.errors:
        raise ExpansionError("; ".join(preprocessor.errors[:3]))
    return text.getvalue()

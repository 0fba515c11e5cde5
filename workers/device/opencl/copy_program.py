"""Build copies of kernels: as ``session.build_program``, but on PoCL in a fraction of the time.

PoCL reads a header with all built-in functions at each build. Its text is skipped if the macro that
guards it is defined, and the copy gets the declarations of the functions that it calls
(``builtin_declarations.py``). A copy that does not build in this way is built again with the
header.
"""

from __future__ import annotations

import re

import pyopencl as cl  # noqa: TID251

from workers.device.interface import DeviceFailure
from workers.device.opencl.builtin_declarations import declarations
from workers.device.opencl.session import build_program

POCL = "Portable Computing Language"
_SKIPPED_HEADER = "-D_OPENCL_H_"
"""Defines the macro that guards clang's ``opencl-c.h`` against a second reading. The types and
constants of OpenCL C are in ``opencl-c-base.h``, which PoCL reads all the same."""
_NEWER = re.compile(r"-cl-std=(?!CL1\.)")
"""A standard whose built-in functions have other overloads."""


def build_copy(context: cl.Context, device: cl.Device, source: str, options: str) -> cl.Program:
    """Build the copy of a kernel from its text, whose macros are expanded.

    Raises:
        DeviceFailure: ``build_error``, with the compiler's log.
    """
    if device.platform.name == POCL and _NEWER.search(options) is None:
        try:
            program, _ = build_program(
                context, device, declarations(source) + source, f"{options} {_SKIPPED_HEADER}"
            )
        except DeviceFailure:
            pass  # the build with the header decides, and has the log that users can read
        else:
            return program
    program, _ = build_program(context, device, source, options)
    return program

"""The compact form of a prompt: the kernel first, then what differs between launches.

Owns both parts. All launches of a kernel on a device class share the prefix::

    device h200
    kernel scale
    #define N 16
    flags -cl-fast-relaxed-math
    arg 0 global write float* a
    arg 1 scalar int n
    kernel void scale(global float *a, int n) {
    ...

The suffix has one line for each quantity. A blank stands before each digit, so that even a
tokenizer made for prose gives each digit a token of its own::

    global 1 0 2 4
    local 6 4
    groups 1 6
    a 1 0 2 4
    n 5

The prefix ends with a line end and the suffix begins with a word. GPT-2's pattern always splits
there, so tokenising prefix and suffix separately equals tokenising the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.interface import Codes
from trainer.prompt.kernel_text import ArgumentText, KernelText
from trainer.prompt.launch_numbers import LaunchNumbers

_SIZES = ("global", "local", "groups")


def before_code(kernel: KernelText) -> str:
    """Return the prefix before the source: device, name, macros, flags, arguments."""
    lines = [f"device {kernel.device_class}"] if kernel.device_class else []
    lines.append(f"kernel {kernel.name}")
    for macro in kernel.macros:
        name, is_given, value = macro.partition("=")
        lines.append(f"#define {name} {value if is_given else 1}")  # -DNAME defines it as 1
    if kernel.flags:
        lines.append(" ".join(["flags", *kernel.flags]))
    lines += map(_argument_line, kernel.arguments)
    return "".join(f"{line}\n" for line in lines)


def _argument_line(argument: ArgumentText) -> str:
    facts = ["arg", str(argument.position), argument.qualifier]
    if argument.is_buffer:
        facts.append(argument.access)
    facts.append(argument.type_name)
    if _plain_type(argument.type_name) != argument.canonical_type:
        # A typedef or a structure: its name tells neither the type nor the size.
        facts.append(f"({argument.canonical_type}, {argument.element_bytes} bytes)")
    return " ".join([*facts, argument.name])


def _plain_type(type_name: str) -> str:
    words = type_name.replace("*", " ").split()
    return " ".join(word for word in words if word not in {"const", "volatile", "restrict"})


def suffixes(kernels: Sequence[KernelText], kernel_row: Codes, numbers: LaunchNumbers) -> list[str]:
    """Return the suffix of each launch.

    Args:
        kernels: the distinct kernels.
        kernel_row: position of each launch's kernel in ``kernels``, shape (n,).
        numbers: sizes and arguments of the n launches.
    """
    declared = [{one.position: one for one in kernel.arguments} for kernel in kernels]
    starts, dims = numbers.argument_start.tolist(), numbers.dims.tolist()
    arguments = list(
        zip(numbers.position.tolist(), numbers.amount.tolist(), numbers.limit.tolist(), strict=True)
    )
    sizes = [
        size.astype(np.int64).tolist()
        for size in (numbers.global_size, numbers.local_size, numbers.num_groups)
    ]
    texts = []
    for row, kernel in enumerate(kernel_row.tolist()):
        lines = [
            name + " x".join(apart(str(size)) for size in values[row][: dims[row]])
            for name, values in zip(_SIZES, sizes, strict=True)
        ]
        lines += [
            _amount_line(declared[kernel][position], amount, limit)
            for position, amount, limit in arguments[starts[row] : starts[row + 1]]
        ]
        texts.append("\n".join(lines) + "\n")
    return texts


def _amount_line(argument: ArgumentText, amount: float, limit: float) -> str:
    text = argument.name + apart(str(int(amount)) if argument.is_whole else f"{amount:.6g}")
    return text if math.isnan(limit) else f"{text} below{apart(str(int(limit)))}"


def apart(number: str) -> str:
    """Return a number with a blank before each of its characters.

    >>> apart("1024"), apart("-1.5")
    (' 1 0 2 4', ' - 1 . 5')
    """
    return " " + " ".join(number)

r"""The published template, word for word (LLMPerf, arXiv 2503.11244, and its released code).

The text is divided into prefix and suffix between the two line ends before ``Given input:``. With
a tokenizer that splits text as GPT-2 does (CodeGen's is one), tokenising prefix and suffix
separately equals tokenising the whole text: the pattern ``\s+(?!\S)|\s+`` makes the last white
space before a word a piece of its own, so a piece always ends between the two line ends. A
tokenizer that joins line ends, such as Qwen2's, gives other tokens there.

Three details that the paper does not specify are chosen here: a buffer's qualifier is its address
space, types are written as declared, and the sizes of an NDRange are separated by a comma and a
blank, as in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from trainer.interface import Codes
from trainer.prompt.kernel_text import ArgumentText, KernelText
from trainer.prompt.launch_numbers import LaunchNumbers

BEFORE_CODE = "Predict time for the following OpenCL kernel:\n```"
AFTER_CODE = "```\n"
_SUFFIX = (
    "\nGiven input:\n{inputs}\n\nGiven kernel are executed with global size equals "
    "`cl::NDRange({gsize})`, local work-group size equals `cl::NDRange({lsize})`\n\n"
)
_BUFFER = (
    "Argument at position {at} is `{name}`, which is {qualifier} buffer of type `{type}` "
    "with size `"
)
_SCALAR = "Argument at position {at} is `{name}`, which is scalar of type `{type}` with value `"


def suffixes(kernels: Sequence[KernelText], kernel_row: Codes, numbers: LaunchNumbers) -> list[str]:
    """Return the suffix of each launch.

    Args:
        kernels: the distinct kernels.
        kernel_row: position of each launch's kernel in ``kernels``, shape (n,).
        numbers: sizes and arguments of the n launches.
    """
    lines = [_lines(kernel) for kernel in kernels]
    starts, amounts = numbers.argument_start.tolist(), numbers.amount.tolist()
    positions, dims = numbers.position.tolist(), numbers.dims.tolist()
    totals = numbers.global_size.astype(np.int64).tolist()
    groups = numbers.local_size.astype(np.int64).tolist()
    texts = []
    for row, kernel in enumerate(kernel_row.tolist()):
        declared = lines[kernel]
        inputs = [
            declared[positions[at]](amounts[at]) for at in range(starts[row], starts[row + 1])
        ]
        texts.append(
            _SUFFIX.format(
                inputs="\n".join(inputs),
                gsize=", ".join(map(str, totals[row][: dims[row]])),
                lsize=", ".join(map(str, groups[row][: dims[row]])),
            )
        )
    return texts


def _lines(kernel: KernelText) -> dict[int, Callable[[float], str]]:
    """Return, by argument position, a function that makes the argument's line from its number."""
    return {
        one.position: partial(_line, _line_start(one), one.is_whole) for one in kernel.arguments
    }


def _line(start: str, is_whole: bool, amount: float) -> str:
    return f"{start}{int(amount) if is_whole else amount!r}`"


def _line_start(argument: ArgumentText) -> str:
    form = _BUFFER if argument.is_buffer else _SCALAR
    return form.format(
        at=argument.position,
        name=argument.name,
        qualifier=argument.qualifier,
        type=argument.type_name,
    )

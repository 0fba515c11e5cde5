"""The static facts of a kernel that prompts contain: source, arguments, macros, compiler flags.

Owns the conversion of rows of ``kernels``. Training and prediction use the same conversion.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from llmperf_common.launch import is_integer_scalar
from llmperf_common.records import ArgumentKind
from trainer.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentText:
    """One declared argument; the fields are those of ``llmperf_common.records.Argument``."""

    position: int
    name: str
    kind: str
    type_name: str
    scalar_type: str
    vector_width: int
    element_bytes: int
    access: str

    @property
    def qualifier(self) -> str:
        """The address space of a buffer (global, ...), else the kind (scalar, struct, ...)."""
        return self.kind.removesuffix("_buffer")

    @property
    def is_buffer(self) -> bool:
        """Whether a launch specifies the argument by its number of elements."""
        return ArgumentKind(self.kind).is_buffer

    @property
    def is_whole(self) -> bool:
        """Whether a launch specifies the argument by a whole number."""
        return self.is_buffer or is_integer_scalar(self.scalar_type)

    @property
    def canonical_type(self) -> str:
        """The type with typedefs resolved, such as ``float4``."""
        return self.scalar_type + (str(self.vector_width) if self.vector_width > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """One kernel on one device class.

    Attributes:
        name: name of the function.
        device_class: slug; empty where unknown.
        source: the source given to the compiler.
        macros: the compiler's ``-D`` options, ``NAME`` or ``NAME=VALUE``, in their order.
        flags: the compiler's ``-cl-...`` options, in their order.
        arguments: the arguments by position.
    """

    name: str
    device_class: str
    source: str
    macros: tuple[str, ...]
    flags: tuple[str, ...]
    arguments: tuple[ArgumentText, ...]


def kernel_texts(kernels: pa.Table) -> tuple[KernelText, ...]:
    """Return the text of each row of ``kernels`` (schema ``KERNELS``).

    Raises:
        BadInput: A source is null.
    """
    wanted = ("name", "source", "args", "build", "device_class")
    present = [name for name in wanted if name in kernels.column_names]
    return tuple(_kernel_text(row) for row in kernels.select(present).to_pylist())


def _kernel_text(row: dict[str, Any]) -> KernelText:
    name, source = row["name"], row["source"]
    if source is None:
        raise BadInput(
            f"kernel {name!r} comes without its source, but this model reads sources: use a "
            "dataset with sources, or train a model that reads features only (--preset gbdt)"
        )
    options = (row.get("build") or {}).get("options") or ""
    macros, flags = macros_and_flags(options)
    # A later release may record members of an argument that this release does not know.
    known = [
        ArgumentText(**{field.name: argument[field.name] for field in fields(ArgumentText)})
        for argument in row["args"] or []
    ]
    return KernelText(
        name=name,
        device_class=row.get("device_class") or "",
        source=source,
        macros=macros,
        flags=flags,
        arguments=tuple(sorted(known, key=lambda one: one.position)),
    )


def macros_and_flags(build_options: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ``-D`` definitions and the ``-cl-...`` flags of a compiler's options.

    Include folders and warning options are left out, because they do not change the kernel.

    >>> macros_and_flags("-DN=4 -D M -I include -w -cl-fast-relaxed-math")
    (('N=4', 'M'), ('-cl-fast-relaxed-math',))
    """
    macros, flags = [], []
    words = iter(_words(build_options))
    for word in words:
        if word == "-D":
            macros.append(next(words, ""))
        elif word.startswith("-D"):
            macros.append(word.removeprefix("-D"))
        elif word.startswith("-cl-"):
            flags.append(word)
    return tuple(macro for macro in macros if macro), tuple(flags)


def _words(build_options: str) -> Sequence[str]:
    try:
        return shlex.split(build_options)
    except ValueError:  # a quote that is never closed
        return build_options.split()

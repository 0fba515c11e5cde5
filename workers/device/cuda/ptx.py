"""Translate the PTX of NVIDIA's OpenCL compiler into PTX that the CUDA driver loads.

Owns the differences between the two dialects, and the list of a program's kernels; uses no device.
It raises ``UnsupportedPtxError`` for everything that it does not know. Otherwise CUDA could run a
kernel wrongly, and nothing would show that.

OpenCL's driver fills the registers ``%envreg``; CUDA's driver does not fill them. Their contents
are not documented (the PTX ISA says "driver-defined"). This module assumes the following contents:
0-2 hold the group offset and 3-5 the global offset, both 0 in every launch of LLMPerf; 6-8 hold the
number of work-groups, CUDA's ``%nctaid``; 9 holds the number of dimensions of the NDRange. Two
public projects that read such PTX assume the same. A program with any other register is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

LOCAL_ALIGNMENT_BYTES = 128
"""Bytes to which each ``__local`` argument is aligned in shared memory: the size of OpenCL's widest
type, double16."""

_DYNAMIC_SHARED = "llmperf_dynamic_shared"
_TYPE_BYTES = {
    f".{kind}{bits}": bits // 8
    for kind, widths in {
        "u": (8, 16, 32, 64), "s": (8, 16, 32, 64), "b": (8, 16, 32, 64), "f": (16, 32, 64),
    }.items()
    for bits in widths
}  # fmt: skip
_ZERO_REGISTERS = range(6)
_GROUP_COUNTS = {6: "%nctaid.x", 7: "%nctaid.y", 8: "%nctaid.z"}
_WORK_DIM_REGISTER = 9

_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TARGET = re.compile(r"^[ \t]*\.target\b([^\n]*)$", re.MULTILINE)
_ADDRESS_SIZE = re.compile(r"\.address_size\s+(\d+)")
_OPAQUE = re.compile(r"\.(?:texref|samplerref|surfref)\b")
_ENVIRONMENT = re.compile(r"(\bmov\.[busf]32\s+%[\w$]+\s*,\s*)%envreg(\d+)(\s*;)")
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*")
_CONSTANT_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|extern|weak)[ \t]+)?\.const\b", re.MULTILINE
)


class UnsupportedPtxError(ValueError):
    """The PTX contains something whose meaning under CUDA this module does not know."""


class ParameterSpace(StrEnum):
    """The kind of a kernel parameter: a value, or a pointer into one of the memories."""

    VALUE = "value"
    GLOBAL = "global"
    CONSTANT = "const"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter; ``num_bytes`` and ``alignment_bytes`` describe it, not a pointer's target."""

    name: str
    num_bytes: int
    alignment_bytes: int
    space: ParameterSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel of a program."""

    name: str
    parameters: tuple[Parameter, ...]

    def pack(self, values: Sequence[bytes]) -> bytes:
        """Return the parameters' values in the one buffer that a launch takes.

        Raises:
            ValueError: The number of values, or the size of one, does not fit the parameters.
        """
        if len(values) != len(self.parameters):
            raise ValueError(
                f"{self.name} has {len(self.parameters)} parameters, not {len(values)}"
            )
        packed = bytearray()
        for parameter, value in zip(self.parameters, values, strict=True):
            if len(value) != parameter.num_bytes:
                raise ValueError(
                    f"{parameter.name} has {parameter.num_bytes} bytes, not {len(value)}"
                )
            packed += bytes(-len(packed) % parameter.alignment_bytes) + value
        return bytes(packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPtx:
    """A program that the CUDA driver loads."""

    text: str
    entries: tuple[Entry, ...]

    @property
    def image(self) -> bytes:
        """The argument of ``cuModuleLoadDataEx``: the text, ended by a NUL."""
        return self.text.encode() + b"\0"

    def entry(self, name: str) -> Entry:
        """Return the kernel of this name. Raises UnsupportedPtxError if there is none."""
        for one in self.entries:
            if one.name == name:
                return one
        raise UnsupportedPtxError(f"no kernel {name!r}, only {[one.name for one in self.entries]}")


def translate(binary: bytes, *, work_dim: int, for_launch: bool = False) -> CudaPtx:
    """Return the program of an OpenCL binary (``clGetProgramInfo(BINARIES)``) for CUDA's driver.

    Args:
        binary: PTX as NVIDIA's OpenCL stores it.
        work_dim: number of dimensions of the NDRange, 1 to 3; a kernel may query it.
        for_launch: also change how arguments are passed. A ``__local`` argument becomes an offset
            into the dynamic shared memory (OpenCL's driver passes an address). A ``__constant``
            argument points to global memory. Without ``for_launch`` the instructions stay those of
            OpenCL, so that their resources can be found.

    Raises:
        UnsupportedPtxError: The binary is not such PTX, or has unknown parts (images, registers).

    >>> text = b'''.version 8.4
    ... .target sm_90, texmode_independent
    ... .address_size 64
    ... .entry k(.param .u64 .ptr .global .align 4 k_param_0) { mov.b32 %r1, %envreg3; ret; }'''
    >>> made = translate(text, work_dim=1)
    >>> print(made.text.splitlines()[-1])
    .entry k(.param .u64 k_param_0) { mov.b32 %r1, 0; ret; }
    """
    text = _without_comments(_decoded(binary))
    if (found := _OPAQUE.search(text)) is not None:
        raise UnsupportedPtxError(f"images and samplers are not supported ({found[0]})")
    text = _with_plain_target(text)
    text = _with_environment(text, work_dim)
    text, entries = _with_plain_parameters(text)
    if for_launch:
        text = _with_launch_arguments(text, entries)
    return CudaPtx(text=text, entries=entries)


def _decoded(binary: bytes) -> str:
    try:
        text = binary.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnsupportedPtxError(f"the binary is not text: {error}") from error
    if "\0" in text or re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) is None:
        raise UnsupportedPtxError(f"the binary is not PTX: it begins with {text[:40]!r}")
    return text


def _without_comments(text: str) -> str:
    return _STRING_OR_COMMENT.sub(lambda found: found[1] or " ", text)


def _with_plain_target(text: str) -> str:
    sizes = _ADDRESS_SIZE.findall(text)
    if sizes != ["64"]:
        raise UnsupportedPtxError(f".address_size {sizes or 'missing'}: 64 is needed")
    lines = _TARGET.findall(text)
    if len(lines) != 1:
        raise UnsupportedPtxError(f"{len(lines)} .target directives: exactly one is needed")
    architecture, *options = (word.strip() for word in lines[0].split(","))
    if re.fullmatch(r"sm_\d+[af]?", architecture) is None:
        raise UnsupportedPtxError(f".target {architecture!r}: an architecture sm_NN is needed")
    unknown = set(options) - {"texmode_independent", "texmode_unified", "debug"}
    if unknown:
        raise UnsupportedPtxError(f"unsupported .target options {sorted(unknown)}")
    kept = [architecture, *(word for word in options if word == "debug")]
    return _TARGET.sub(lambda _: f".target {', '.join(kept)}", text)


def _with_environment(text: str, work_dim: int) -> str:
    def value(found: re.Match[str]) -> str:
        number = int(found[2])
        if number in _ZERO_REGISTERS:
            known = "0"
        elif number in _GROUP_COUNTS:
            known = _GROUP_COUNTS[number]
        elif number == _WORK_DIM_REGISTER:
            known = str(work_dim)
        else:
            raise UnsupportedPtxError(f"%envreg{number}: its meaning is not known")
        return f"{found[1]}{known}{found[3]}"

    text = _ENVIRONMENT.sub(value, text)
    if (left := re.search(r"[^\n;]*%envreg[^\n;]*", text)) is not None:
        raise UnsupportedPtxError(f"%envreg outside a 32-bit mov: {left[0].strip()!r}")
    return text


def _with_plain_parameters(text: str) -> tuple[str, tuple[Entry, ...]]:
    pieces, entries, done = [], [], 0
    for found in _ENTRY.finditer(text):
        start = end = found.end()
        if text.startswith("(", start):
            end = text.index(")", start) + 1 if ")" in text[start:] else len(text)
        words = [one.split() for one in text[start + 1 : end - 1].split(",") if one.strip()]
        parsed = [_parameter(one) for one in words]
        entries.append(Entry(name=found[1], parameters=tuple(parameter for parameter, _ in parsed)))
        plain = ", ".join(declaration for _, declaration in parsed)
        pieces += [text[done:start], f"({plain})" if end > start else ""]
        done = end
    plain_text = "".join([*pieces, text[done:]])
    if not entries:
        raise UnsupportedPtxError("no kernel (.entry) in the PTX")
    if (left := re.search(r"[^\n]*\.ptr\b[^\n]*", plain_text)) is not None:
        raise UnsupportedPtxError(f".ptr outside a kernel's parameters: {left[0].strip()!r}")
    return plain_text, tuple(entries)


def _parameter(words: Sequence[str]) -> tuple[Parameter, str]:
    """Return the parameter, and its declaration without ``.ptr`` and the options of ``.ptr``."""
    declaration = " ".join(words)
    pattern = (
        r"\.param(?: \.align (?P<own>\d+))? (?P<type>\.\w+)"
        r"(?P<pointer> \.ptr(?: \.(?P<space>\w+))?(?: \.align \d+)?)?"
        r" (?P<name>[A-Za-z_$%][\w$]*) ?(?:\[ ?(?P<count>\d+) ?\])?"
    )
    found = re.fullmatch(pattern, declaration)
    if found is None or found["type"] not in _TYPE_BYTES:
        raise UnsupportedPtxError(f"unsupported parameter declaration {declaration!r}")
    width = _TYPE_BYTES[found["type"]]
    space = ParameterSpace.VALUE
    if found["pointer"]:
        if found["space"] not in ("global", "const", "shared") or found["count"]:
            raise UnsupportedPtxError(f"unsupported parameter declaration {declaration!r}")
        space = ParameterSpace(found["space"])
    parameter = Parameter(
        name=found["name"],
        num_bytes=width * int(found["count"] or 1),
        alignment_bytes=int(found["own"] or width),
        space=space,
    )
    return parameter, declaration.replace(found["pointer"] or "", "")


def _with_launch_arguments(text: str, entries: Iterable[Entry]) -> str:
    parameters = [one for entry in entries for one in entry.parameters]
    shared = [one for one in parameters if one.space is ParameterSpace.SHARED]
    for parameter in shared:
        text = _with_shared_offset(text, parameter)
    if shared:
        array = f"\n.extern .shared .align {LOCAL_ALIGNMENT_BYTES} .b8 {_DYNAMIC_SHARED}[];"
        text = _ADDRESS_SIZE.sub(lambda found: found[0] + array, text)
    if any(one.space is ParameterSpace.CONSTANT for one in parameters):
        if _CONSTANT_VARIABLE.search(text) or re.search(r"\bcvta\.(?:to\.)?const\b", text):
            raise UnsupportedPtxError(
                "__constant arguments and __constant variables in one program are not supported"
            )
        text = re.sub(r"\bld\.const\b", "ld.global", text)
    return text


def _with_shared_offset(text: str, parameter: Parameter) -> str:
    """Add the address of the dynamic shared memory to each read of the offset ``parameter``."""
    name, bits = re.escape(parameter.name), 8 * parameter.num_bytes
    load = re.compile(
        rf"(?<![\w.$@%])(ld\.param\.[ub]{bits}\s+(%[\w$]+)\s*,\s*\[\s*{name}\s*(?:\+\s*0\s*)?\]\s*;)"
    )
    guarded = re.search(rf"@!?%[\w$]+\s+ld\.param\.\w+[^;]*\[\s*{name}\b", text)
    num_uses = len(re.findall(rf"(?<![\w$]){name}(?![\w$])", text)) - 1  # without its declaration
    base = "%llmperf_base"
    moved, num_loads = load.subn(
        rf"\1 {{ .reg .b{bits} {base}; mov.u{bits} {base}, {_DYNAMIC_SHARED};"
        rf" add.s{bits} \2, \2, {base}; }}",
        text,
    )
    if guarded or num_loads != num_uses:
        raise UnsupportedPtxError(f"__local argument {parameter.name} is not read by plain loads")
    return moved

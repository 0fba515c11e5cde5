"""What generated inputs contain: the content rule of buffers and the packing of scalars.

Owns the rule and its reference implementation in numpy. ``workers/device/opencl/fill.cl`` computes
the same bits on the device; a test compares the two. Needs no device. Does not own how many
elements a buffer has and which buffers get a content rule (both: ``workers/plan/strategies``), or
where buffers are allocated (``workers/device``).

The rule, a pure function of (seed, argument position, index of the scalar within the buffer):

* ``float`` and ``double``: uniform in [0, 1), so sums are finite, roots and logarithms real;
* ``half``: one of the 2,048 multiples of 2**-11 in [0, 1), stored as valid half bits;
* integers of any width: uniform in 0..15, so an index or loop bound computed from them stays small;
* integers whose launch argument says ``bounded``: uniform in [0, limit);
* integers whose launch argument says ``prefix``: scalar i of n lies between floor(i·limit/n) and
  floor((i+1)·limit/n); a hash of i decides where. The scalars never decrease and stay in
  [0, limit), like row offsets: each row is about limit/n long, at most twice that plus one;
* floats whose launch argument says ``signed``: either sign, magnitudes uniform in [0.5, 2). A loop
  that sums such values may never end, so buffers get such values only if contents steer nothing, or
  if virtual launches with such values have ended;
* integers and floats whose launch argument says ``flags``: whole numbers, uniform in [0, limit);
* ``bool``: 0 or 1.

The components of a vector type are filled one by one, also the padding lane of a 3-vector. A
structure is filled member by member; each member has its own stream of values, and padding bytes
are not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import Argument
from workers.plan.mixing import mix32

INTEGER_LIMIT = 16
"""Generated integers are below this number, so indices and loop bounds made of them are small."""
MAX_CONTENTS_LIMIT = 2**32
"""Largest limit of a content rule, because values come from 32 hashed bits."""

_MOST_WHOLE_HALF, _MOST_WHOLE_FLOAT = 2**11, 2**24
"""Limits up to which every whole number is exact in ``half``, and in ``float`` and ``double``."""

_MASK32 = 0xFFFF_FFFF
_INDEX_STEP = 0x9E37_79B9
_POSITION_STEP = 0x85EB_CA6B
_HIGH_STEP = 0xC2B2_AE35
_LEAF_STEP = 0x27D4_EB2F


class FillKind(StrEnum):
    """How 32 hashed bits become one scalar; each kind has a kernel ``fill_<kind>`` in fill.cl."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"


def is_integer(kind: FillKind) -> bool:
    """Return whether scalars of a kind are integers; ``bool`` does not count as one."""
    return kind.startswith("int")


_SCALAR_BYTES = {
    FillKind.FLOAT32: 4,
    FillKind.FLOAT64: 8,
    FillKind.FLOAT16: 2,
    FillKind.INT8: 1,
    FillKind.INT16: 2,
    FillKind.INT32: 4,
    FillKind.INT64: 8,
    FillKind.BOOL: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarType:
    """One OpenCL scalar type: its fill kind and the numpy type of the same bits."""

    fill_kind: FillKind
    dtype: np.dtype[Any]


def _scalar_type(fill_kind: FillKind, dtype: str) -> ScalarType:
    return ScalarType(fill_kind=fill_kind, dtype=np.dtype(dtype))


SCALAR_TYPES: dict[str, ScalarType] = {
    "char": _scalar_type(FillKind.INT8, "int8"),
    "uchar": _scalar_type(FillKind.INT8, "uint8"),
    "short": _scalar_type(FillKind.INT16, "int16"),
    "ushort": _scalar_type(FillKind.INT16, "uint16"),
    "int": _scalar_type(FillKind.INT32, "int32"),
    "uint": _scalar_type(FillKind.INT32, "uint32"),
    "long": _scalar_type(FillKind.INT64, "int64"),
    "ulong": _scalar_type(FillKind.INT64, "uint64"),
    "size_t": _scalar_type(FillKind.INT64, "uint64"),
    "ptrdiff_t": _scalar_type(FillKind.INT64, "int64"),
    "half": _scalar_type(FillKind.FLOAT16, "float16"),
    "float": _scalar_type(FillKind.FLOAT32, "float32"),
    "double": _scalar_type(FillKind.FLOAT64, "float64"),
    "bool": _scalar_type(FillKind.BOOL, "uint8"),
}
"""Scalar types by their canonical OpenCL names. 32-bit devices, where ``size_t`` has 4 bytes, are
not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlace:
    """The place of a member: ``count`` scalars from ``offset`` on, in structures of ``stride``."""

    offset: int
    stride: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSpec:
    """How to fill one buffer, or one member of its structures.

    Attributes:
        kind: type of the scalars.
        key: 32-bit key of the random stream that gives the values.
        num_scalars: number of scalars to write (not bytes).
        contents: rule for the values; None for the type's usual values. The type must support the
            rule, and its limit must be representable in the type.
        place: where the member lies in its structure; None for a contiguous array of scalars.
    """

    kind: FillKind
    key: int
    num_scalars: int
    contents: Contents | None = None
    place: LeafPlace | None = None

    @property
    def kernel_name(self) -> str:
        """Name of the kernel in fill.cl that writes these values."""
        rule = self.contents.rule.value if self.contents else "fill"
        if self.contents and self.contents.rule is ContentsRule.FLAGS and is_integer(self.kind):
            rule = ContentsRule.BOUNDED.value  # for integers, both rules give the same values
        return f"{rule}_{self.kind}" + ("_leaf" if self.place else "")

    @property
    def scalar_bytes(self) -> int:
        """Size of one scalar, bytes."""
        return _SCALAR_BYTES[self.kind]


def is_fillable(scalar_type: str) -> bool:
    """Return whether buffers and values of this scalar type can be made.

    >>> is_fillable("float"), is_fillable("struct node")
    (True, False)
    """
    return scalar_type in SCALAR_TYPES


def stream_key(*, seed: int, position: int) -> int:
    """Return the 32-bit key of one argument's stream of values, made from 64 bits of ``seed``."""
    high = mix32((seed >> 32) + 0x2545_F491)
    return mix32(mix32(seed ^ high) + (position + 1) * _POSITION_STEP)


def fill_spec(
    argument: Argument, *, elements: int, seed: int, contents: Contents | None = None
) -> FillSpec:
    """Return how to fill ``elements`` of a buffer whose scalars all have one type.

    Raises:
        ValueError: The element type has no fill rule. Such a kernel should have no signature.
    """
    if not is_fillable(argument.scalar_type):
        raise ValueError(f"argument {argument.name!r}: no fill rule for {argument.type_name!r}")
    scalar = SCALAR_TYPES[argument.scalar_type]
    num_scalars = elements * argument.element_bytes // scalar.dtype.itemsize
    return FillSpec(
        kind=scalar.fill_kind,
        key=stream_key(seed=seed, position=argument.position),
        num_scalars=num_scalars,
        contents=_usable(contents, scalar, num_scalars),
    )


def fill_specs(
    argument: Argument, *, elements: int, seed: int, contents: Contents | None = None
) -> tuple[FillSpec, ...]:
    """Return how to fill any buffer: in one step, or in one step per member of its structures.

    A content rule applies to every integer member.

    Raises:
        ValueError: The element type has no fill rule. Such a kernel should have no signature.
    """
    if not argument.leaves:
        return (fill_spec(argument, elements=elements, seed=seed, contents=contents),)
    return tuple(_leaf_specs(argument, elements, seed, contents))


def _leaf_specs(
    argument: Argument, elements: int, seed: int, contents: Contents | None
) -> Iterator[FillSpec]:
    key = stream_key(seed=seed, position=argument.position)
    for number, leaf in enumerate(argument.leaves):
        scalar = SCALAR_TYPES[leaf.scalar_type]
        width = scalar.dtype.itemsize
        if leaf.offset_bytes % width or argument.element_bytes % width:
            raise ValueError(
                f"argument {argument.name!r}: a member of {argument.type_name!r} is not aligned"
            )
        num_scalars = elements * leaf.count
        yield FillSpec(
            kind=scalar.fill_kind,
            key=mix32(key + (number + 1) * _LEAF_STEP),
            num_scalars=num_scalars,
            contents=_usable(contents, scalar, num_scalars),
            place=LeafPlace(
                offset=leaf.offset_bytes // width,
                stride=argument.element_bytes // width,
                count=leaf.count,
            ),
        )


def _usable(contents: Contents | None, scalar: ScalarType, num_scalars: int) -> Contents | None:
    """Return the rule with a limit that the type can hold; None if the type cannot use the rule."""
    if contents is None or scalar.fill_kind is FillKind.BOOL:
        return None
    if not is_integer(scalar.fill_kind):
        is_known = contents.rule in (ContentsRule.FLAGS, ContentsRule.SIGNED)
        most = _MOST_WHOLE_HALF if scalar.fill_kind is FillKind.FLOAT16 else _MOST_WHOLE_FLOAT
        limit = max(1, min(contents.limit, most))
        return Contents(rule=contents.rule, limit=limit) if is_known else None
    if contents.rule is ContentsRule.SIGNED:
        return None
    most = min(MAX_CONTENTS_LIMIT, int(np.iinfo(scalar.dtype).max) + 1)
    if contents.rule is ContentsRule.PREFIX:
        most = min(most, (2**64 - 1) // max(1, num_scalars))
    return Contents(rule=contents.rule, limit=max(1, min(contents.limit, most)))


def reference_fill(spec: FillSpec) -> npt.NDArray[Any]:
    """Return what the device must write for ``spec``, bit for bit; integers are unsigned."""
    return scalars_of(_hashed_bits(spec), spec)


def scalars_of(bits: npt.NDArray[np.uint32], spec: FillSpec, *, start: int = 0) -> npt.NDArray[Any]:
    """Return the scalars of ``spec`` from index ``start`` on, made of hashed ``bits``."""
    if spec.kind.startswith("float"):
        return _floats(bits, spec)
    if spec.kind is FillKind.BOOL:
        return (bits >> np.uint32(31)).astype(np.uint8)
    integers = np.dtype(f"uint{int(spec.kind.removeprefix('int'))}")
    if spec.contents is None:
        return (bits >> np.uint32(28)).astype(integers)
    return _steered(bits, spec.contents, start, spec.num_scalars).astype(integers)


_USED_BITS = {FillKind.FLOAT32: 24, FillKind.FLOAT64: 32, FillKind.FLOAT16: 11}
"""Leading hashed bits used per floating-point scalar; the significand can hold this many bits."""


def _floats(bits: npt.NDArray[np.uint32], spec: FillSpec) -> npt.NDArray[Any]:
    dtype = np.dtype(f"float{_SCALAR_BYTES[spec.kind] * 8}")
    used = _USED_BITS[spec.kind]
    exact: type[np.floating[Any]] = np.float64 if spec.kind is FillKind.FLOAT64 else np.float32
    if spec.contents is None:
        values = (bits >> np.uint32(32 - used)).astype(exact) * exact(2.0**-used)
        return np.asarray(values, dtype)
    if spec.contents.rule is ContentsRule.FLAGS:
        whole = (bits.astype(np.uint64) * np.uint64(spec.contents.limit)) >> np.uint64(32)
        return np.asarray(whole, dtype)
    # One bit is the sign. All others give a number below 3/2. The sum with 1/2 is exact.
    drawn = (bits >> np.uint32(32 - used)).astype(np.uint64)
    is_negative = drawn >> np.uint64(used - 1) == 1
    fraction = drawn & np.uint64((1 << (used - 2)) - 1)
    steps = (fraction * np.uint64(3) >> np.uint64(1)) + np.uint64(1 << (used - 3))
    magnitudes = steps.astype(exact) * exact(2.0 ** (2 - used))
    return np.asarray(np.where(is_negative, -magnitudes, magnitudes), dtype)


def _steered(
    bits: npt.NDArray[np.uint32], contents: Contents, start: int, num_scalars: int
) -> npt.NDArray[np.uint64]:
    wide, limit, shift = bits.astype(np.uint64), np.uint64(contents.limit), np.uint64(32)
    if contents.rule is not ContentsRule.PREFIX:
        return (wide * limit) >> shift
    index = np.arange(start, start + len(bits), dtype=np.uint64)
    total = np.uint64(max(1, num_scalars))
    low = index * limit // total
    high = (index + np.uint64(1)) * limit // total
    return low + ((wide * (high - low)) >> shift)


def reference_bytes(
    argument: Argument, *, elements: int, seed: int, contents: Contents | None = None
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a filled buffer; bytes that no rule writes are zero."""
    buffer = np.zeros(elements * argument.element_bytes, np.uint8)
    for spec in fill_specs(argument, elements=elements, seed=seed, contents=contents):
        values = reference_fill(spec)
        scalars = buffer.view(values.dtype)
        if spec.place is None:
            scalars[: len(values)] = values
            continue
        element, within = np.divmod(np.arange(len(values)), spec.place.count)
        scalars[element * spec.place.stride + spec.place.offset + within] = values
    return buffer


def _hashed_bits(spec: FillSpec) -> npt.NDArray[np.uint32]:
    index = np.arange(spec.num_scalars, dtype=np.uint64)
    low = (index & np.uint64(_MASK32)).astype(np.uint32)
    high = (index >> np.uint64(32)).astype(np.uint32)
    value = low * np.uint32(_INDEX_STEP) + (np.uint32(spec.key) ^ (high * np.uint32(_HIGH_STEP)))
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EB_CA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2_AE35)
    value ^= value >> np.uint32(16)
    return value


def clamp_scalar(scalar_type: str, value: float) -> float | int:
    """Return ``value`` moved into the range of ``scalar_type``; plans need this for ``char``.

    >>> clamp_scalar("char", 4096), clamp_scalar("uint", -1), clamp_scalar("float", 0.5)
    (127, 0, 0.5)
    """
    scalar = SCALAR_TYPES[scalar_type]
    if scalar.fill_kind is FillKind.BOOL:
        return int(bool(value))
    if scalar.dtype.kind == "f":
        limit = float(np.finfo(scalar.dtype).max)
        return max(-limit, min(limit, value))
    info = np.iinfo(scalar.dtype)
    return max(int(info.min), min(int(info.max), int(value)))


def pack_scalar(argument: Argument, value: float) -> np.generic | npt.NDArray[Any]:
    """Return ``value`` as the bytes that OpenCL expects for the by-value ``argument``.

    A vector repeats the value in every lane; a 3-vector has four lanes.

    Raises:
        ValueError: The type cannot be passed, or the value does not fit it.
    """
    if not is_fillable(argument.scalar_type):
        raise ValueError(f"argument {argument.name!r}: cannot pass a {argument.type_name!r}")
    dtype = SCALAR_TYPES[argument.scalar_type].dtype
    if dtype.kind != "f":
        if not float(value).is_integer():
            raise ValueError(
                f"argument {argument.name!r}: {value} is not a whole number, "
                f"which {argument.type_name} needs"
            )
        info = np.iinfo(dtype)
        if not info.min <= int(value) <= info.max:
            raise ValueError(
                f"argument {argument.name!r}: {value} does not fit {argument.type_name}"
                f" ({info.min}..{info.max})"
            )
        value = int(value)
    if argument.vector_width == 1:
        packed: np.generic = dtype.type(value)
        return packed
    lanes = 4 if argument.vector_width == 3 else argument.vector_width
    return np.full(lanes, value, dtype=dtype)

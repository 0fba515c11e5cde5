"""Guess the value of a macro that a host program would define, from its name and its uses.

Owns the guesses. A guess need not be the author's value: the kernel only has to compile and do its
usual kind of work. ``macro_inference.py`` keeps a guess only if it removes errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from itertools import islice

DEFAULT_VALUE = "16"
"""Default value: a 16 x 16 tile makes a work-group of 256 work-items, which every device allows."""
FLAT_GROUP_VALUE = "256"
"""Value of a work-group size that is the length of a one-dimensional local array."""
_SHIFT_VALUE = "4"

_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.MULTILINE)
_WORD_BEFORE = re.compile(r"(\w+)\s*\Z")
_BEFORE_A_CAST = frozenset({"return", "case", "else", "do"})
_LOCAL_WORD = re.compile(r"\b(?:__)?local\b")
_MAX_USES = 200
"""Maximum uses of a name that are examined to choose its value."""
_NEARBY_CHARS = 400
"""Characters examined on each side of a use; declarations are shorter than this."""
_TYPE_WORDS = (
    r"(?:const|volatile|restrict|unsigned|signed|static|inline|struct|void|bool|kernel|__kernel"
    r"|global|__global|local|__local|constant|__constant|private|__private"
    r"|(?:u?char|u?short|u?int|u?long|half|float|double|size_t)(?:2|3|4|8|16)?)\b"
)
_FIXED_WIDTH = {
    "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort",
    "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
}  # fmt: skip
_SHORT_WIDTH = re.compile(r"(?:__)?([uisf])(8|16|32|64)", re.IGNORECASE)
_SHORT_NAMES = {
    "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong", "i8": "char", "i16": "short",
    "i32": "int", "i64": "long", "f16": "half", "f32": "float", "f64": "double",
}  # fmt: skip
_FUNCTIONS = {
    "MIN": "min", "MAX": "max", "ABS": "abs", "FABS": "fabs", "SQRT": "sqrt", "RSQRT": "rsqrt",
    "EXP": "exp", "LOG": "log", "POW": "pow", "SIN": "sin", "COS": "cos", "TAN": "tan",
    "FMA": "fma", "MAD": "mad", "CLAMP": "clamp", "FLOOR": "floor", "CEIL": "ceil", "DOT": "dot",
    "MIX": "mix", "MAD24": "mad24", "MUL24": "mul24", "SELECT": "select", "HYPOT": "hypot",
    "TANH": "tanh", "FMIN": "fmin", "FMAX": "fmax",
    "BARRIER": "barrier",
}  # fmt: skip
_CONSTANTS = {
    "TRUE": "1", "FALSE": "0", "PI": "3.14159265f", "TWO_PI": "6.28318531f", "TWOPI": "6.28318531f",
    "EPS": "1e-6f", "EPSILON": "1e-6f", "LARGE": "1e30f", "FLT_INF": "1e30f",
}  # fmt: skip


class Role(Enum):
    """How a source uses a name that has no declaration."""

    TYPE = "type"
    VALUE = "value"
    QUALIFIER = "qualifier"
    FUNCTION = "function"


def directives_apart(code: str) -> str:
    r"""Return ``code`` with a mark after each directive, which separates it from the next line.

    >>> directives_apart("#define TILE TILE_SIZE\n__kernel void f() {}").split("\n")
    ['#define TILE TILE_SIZE #', '__kernel void f() {}']
    """
    return _DIRECTIVE.sub(r"\g<0> #", code)


def role_of(name: str, code: str, *, is_type_by_parser: bool) -> Role:
    """Return how a source uses an undeclared name.

    Args:
        name: the undeclared name.
        code: the source without comments, from ``directives_apart``.
        is_type_by_parser: whether the parser's error calls the name a type.
    """
    word = re.escape(name)
    if re.search(rf"\b{word}\s+{_TYPE_WORDS}", code):
        return Role.QUALIFIER
    uses = len(re.findall(rf"\b{word}\b", code))
    if uses and uses == len(re.findall(rf"\b{word}\s*\(", code)) and not is_type_by_parser:
        return Role.FUNCTION
    # "NAME * x" is a product, unless NAME begins a statement or follows a qualifier.
    declares = (
        rf"\b{word}\s+[A-Za-z_]\w*\s*[;=,\[)(]"
        rf"|(?:[;{{}}]|{_TYPE_WORDS})\s*{word}\s*\*+\s*[A-Za-z_]\w*\s*[;=,\[)]"
    )
    if is_type_by_parser or re.search(declares, code) or _is_cast(word, code):
        return Role.TYPE
    return Role.VALUE


def _is_cast(word: str, code: str) -> bool:
    """Whether code casts to ``word``, which is then alone in parentheses before an operand.

    ``if (NAME) x = 1;`` is no cast, because a word stands before the parenthesis.
    """
    for match in re.finditer(rf"\(\s*{word}[\s*]*\)\s*[A-Za-z_0-9(]", code):
        before = _WORD_BEFORE.search(code[max(0, match.start() - 32) : match.start()])
        if before is None or before[1] in _BEFORE_A_CAST:
            return True
    return False


def type_for(name: str) -> str:
    """Return the type that a name most likely means.

    >>> [type_for(name) for name in ("REAL", "REAL4", "uint32_t", "POSVECTYPE", "INDEX_T")]
    ['float', 'float4', 'uint', 'float4', 'int']
    """
    plain = re.sub(r"(?i)_?t(?:ype)?$", "", name) if len(name) > 2 else name
    if plain.lower() in _FIXED_WIDTH:
        return _FIXED_WIDTH[plain.lower()]
    if _SHORT_WIDTH.fullmatch(plain):
        short = plain.lower().lstrip("_").replace("s", "i")
        return _SHORT_NAMES.get(short, "float")
    match = re.search(r"(?<!\d)(16|8|4|3|2)(?:_?(?:T|TYPE))?$", name, re.IGNORECASE)
    lanes = match.group(1) if match else ""
    upper = name.upper()
    if not lanes and "VEC" in upper:
        lanes = "4"
    return _scalar_for(upper) + lanes


def _scalar_for(upper: str) -> str:
    words = (
        (("DOUBLE", "FP64"), "double"),
        (("HALF", "FP16"), "half"),
        (("UCHAR", "BYTE", "PIXEL"), "uchar"),
        (("CHAR",), "char"),
        (("UINT", "UNSIGNED", "MASK", "HASH"), "uint"),
        (("ULONG",), "ulong"),
        (("LONG",), "long"),
        (("INT", "INDEX", "IDX", "ITYPE", "BOOL"), "int"),
    )
    for parts, scalar in words:
        if any(part in upper for part in parts) and "POINT" not in upper:
            return scalar
    return "float"


def qualifier_for(name: str) -> str:
    """Return the qualifier that a name before a type means, which is often the empty string.

    >>> [qualifier_for(name) for name in ("KERNEL", "GLOBAL_MEM", "INLINE")]
    ['__kernel', '__global', '']
    """
    upper = name.upper()
    words = (
        ("KERNEL", "__kernel"),
        ("GLOBAL", "__global"),
        ("SHARED", "__local"),
        ("LOCAL", "__local"),
        ("CONSTANT", "__constant"),
        ("CONST", "const"),
        ("RESTRICT", "restrict"),
    )
    return next((meaning for part, meaning in words if part in upper), "")


def function_for(name: str) -> str | None:
    """Return the built-in function that a called name means; None if there is no obvious one."""
    return _FUNCTIONS.get(name.strip("_").upper())


def value_for(name: str, code: str) -> str:
    """Return a number for a name, by its use in ``code``.

    >>> value_for("N", "x[N]"), value_for("WG_SIZE", "__local float t[WG_SIZE];")
    ('16', '256')
    >>> value_for("LOG_N", "1 << LOG_N")
    '4'
    """
    word = re.escape(name)
    compared = re.search(rf"#\s*(?:el)?if[ \t(]*{word}\s*==\s*(\d+)", code)
    if compared:
        return compared.group(1)
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if re.search(r"LOG|SHIFT|BITS", name) or re.search(rf"(?:<<|>>)=?\s*{word}\b", code):
        return _SHIFT_VALUE
    for required in re.finditer(r"reqd_work_group_size\s*\(([^()]*)\)", code):
        if num_sides := len(re.findall(rf"\b{word}\b", required[1])):
            return DEFAULT_VALUE if num_sides > 1 else "64"
    if re.search(rf"\b{word}\s*\*\s*{word}\b|get_local_id\s*\(\s*1\s*\)", code):
        return DEFAULT_VALUE
    lengths = list(_lengths(word, code))
    in_row = any(is_local for is_local, _ in lengths)
    in_plane = any(has_more_sides for _, has_more_sides in lengths)
    return FLAT_GROUP_VALUE if in_row and not in_plane else DEFAULT_VALUE


def _lengths(word: str, code: str) -> Iterator[tuple[bool, bool]]:
    """Yield, for each use as an array length, (array is local, array has further dimensions)."""
    for match in islice(re.finditer(rf"\b{word}\b", code), _MAX_USES):
        # Only nearby text is searched: the whole text at each use would take quadratic time.
        before = code[max(0, match.start() - _NEARBY_CHARS) : match.start()].rpartition("]")
        after = code[match.end() : match.end() + _NEARBY_CHARS]
        opening = before[2].find("[")
        if opening == -1:
            continue
        declared = re.split(r"[;{}()]", "".join(before[:2]) + before[2][:opening])[-1]
        is_second = before[1] == "]" and not before[2][:opening].strip()
        has_second = re.match(r"[^\]]*\]\s*\[", after) is not None
        yield _LOCAL_WORD.search(declared) is not None, is_second or has_second

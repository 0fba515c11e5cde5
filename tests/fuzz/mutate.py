"""Break OpenCL sources in the ways people, tools and transmission break them.

Every mutation is a pure function of a text, a second text and a random generator, so that a seed and a number
give the same source again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Mutation = Callable[[str, str, random.Random], str]

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d[\w.]*|\"(?:\\.|[^\"\\\n])*\"|//[^\n]*|/\*.*?\*/|\s+|<<=|>>=|[-+*/%&|^=!<>]=|->|<<|>>|&&|\|\||\+\+|--|.",
    re.DOTALL,
)
_NUMBER = re.compile(r"\b\d[\w.]*\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_TYPES = (
    "void", "bool", "char", "uchar", "short", "int", "uint", "long", "ulong", "size_t", "half", "float", "double",
    "float2", "float3", "float4", "int16", "double8", "image2d_t", "image3d_t", "sampler_t", "event_t", "struct S",
    "union U", "enum E", "atomic_int", "__global float *", "__local int *", "__constant char *", "pipe int",
    "queue_t", "clk_event_t", "reserve_id_t", "float (*)(int)", "typeof(x)", "auto", "long long", "_Bool", "__int128",
)  # fmt: skip
_HUGE_NUMBERS = (
    "0", "-1", "2147483648", "4294967296", "18446744073709551615", "99999999999999999999999999", "0x" + "f" * 40,
    "1e308", "1e999", "1e-999", "0x1p-1074", "0.0f", "1" * 5000, "08", "1.5.5", "'\\xffffff'", "0b102", "1ull << 70",
    "(1 << 31) << 31", "1/0", "sizeof(int[1L << 40])", "(-9223372036854775807L - 1) / -1", "7uuu", "NAN", "INFINITY",
)  # fmt: skip
_LINES = (
    "#if 0", "#if 1", "#endif", "#else", "#elif", "#ifdef N", "#ifndef cl_khr_fp64", "#error no", "#warning yes",
    "#line 1 \"/nonexistent/llmperf/llmperf_kernel.cl\"", "#line 2147483647", "#include <stdio.h>", "#include __FILE__", "#include \"\"",
    "#include \"/etc/passwd\"", "#include \"/dev/zero\"", "#pragma OPENCL EXTENSION cl_khr_fp64 : disable",
    "#pragma OPENCL EXTENSION all : require", "#pragma unroll 1000000", "#pragma pack(1)", "#pragma clang system_header",
    "#define kernel", "#define __kernel kernel", "#define void int", "#define float double", "#define global local",
    "#define get_global_id(x) (x)", "#define get_global_id get_local_id", "#define int long", "#define F(x) F(F(x)) F",
    "#define A A B", "#define EMPTY", "#undef __OPENCL_VERSION__", "#define __OPENCL_VERSION__ 100", "#",
    "#define STR(x) #x ## x", "#define if while", "#define return", "#define ( )", "#define x[i] 3", "%:define Y ??=",
    "_Pragma(\"OPENCL EXTENSION all : disable\")", "static_assert(0, \"\");", "_Static_assert(sizeof(int) == 8, \"\");",
    "__attribute__((reqd_work_group_size(0, 0, 0)))", "__attribute__((reqd_work_group_size(1 << 30, 4, 4)))",
    "__attribute__((vec_type_hint(float4)))", "__attribute__((overloadable))", "__attribute__((packed, aligned(4096)))",
    "__attribute__((opencl_unroll_hint(-1)))", "__attribute__((ext_vector_type(17)))", "__attribute__((vector_size(0)))",
    "__attribute__((address_space(77)))", "__asm__(\"nop\");", "typedef struct S S; struct S { S *next; S a[2]; };",
    "typedef int T[]; typedef T U[3];", "enum { N = N };", "union U { union U u; };", "int f(int f(int f));",
    "kernel void", "__kernel void k(", "__kernel int k() {}", "kernel kernel void k() {}", "template <class T>", "extern \"C\" {",
    "namespace n {", "int (^block)(int) = ^(int x) { return x; };", "goto nowhere;", "case 1:", "default:", "label:",
    "typedef void (*fp)(global float *);", "__constant int c[] = { [5] = 1, [1 ... 3] = 2 };", "int a[-1];", "int v[n][m];",
    "__local float tile[1UL << 40];", "__global int g = 3;", "__private __global int *p;", "static kernel void s(void) {}",
)  # fmt: skip
_ODD_TEXT = (
    "\ufeff", "\u200b", "\u202e", "\u00a0", "\u2028", "\u00b5", "\u0301", "\u4e2d", "\U0001f600", "\ufffd", "\uffff",
    "\ud800", "\udfff", "\0", "\x01", "\x0c", "\x1a", "\x7f", "\r", "\r\n", "\\\n", "\\", "??/", "\\u0041", "\\U0010ffff",
    "'", "\"", "/*", "*/", "//", "@", "`", "$", "\uff11", "\u037e", "R\"(", "u8\"", "L'",
)  # fmt: skip


def mutated(text: str, other: str, chance: random.Random) -> tuple[str, tuple[str, ...]]:
    """Return ``text`` after one to five mutations, and their names."""
    names = []
    for _ in range(1 + min(4, int(chance.expovariate(1.0)))):
        mutation = chance.choice(MUTATIONS)
        text = mutation(text, other, chance)
        names.append(mutation.__name__)
    return text, tuple(names)


def tokens(text: str) -> list[str]:
    """Return the tokens of a text, spaces and comments among them; joined they are the text."""
    return _TOKEN.findall(text)


def flip_bytes(text: str, _other: str, chance: random.Random) -> str:
    """Change a few bits; what is not UTF-8 any more becomes U+FFFD, as a lenient reader makes it."""
    raw = bytearray(text.encode("utf-8", "replace"))
    for _ in range(min(len(raw), chance.randint(1, 8))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return raw.decode("utf-8", "replace")


def delete_tokens(text: str, _other: str, chance: random.Random) -> str:
    """Leave out a run of tokens."""
    found = tokens(text)
    start, end = _span(found, chance, longest=12)
    return "".join(found[:start] + found[end:])


def duplicate_tokens(text: str, _other: str, chance: random.Random) -> str:
    """Write a run of tokens twice, or very often."""
    found = tokens(text)
    start, end = _span(found, chance, longest=20)
    times = chance.choice((1, 1, 1, 2, 50))
    return "".join(found[:end] + found[start:end] * times + found[end:])


def swap_tokens(text: str, _other: str, chance: random.Random) -> str:
    """Exchange two tokens that are no spaces."""
    found = tokens(text)
    solid = [index for index, token in enumerate(found) if not token.isspace()]
    if len(solid) < 2:
        return text
    one, two = chance.sample(solid, 2)
    found[one], found[two] = found[two], found[one]
    return "".join(found)


def splice(text: str, other: str, chance: random.Random) -> str:
    """The head of one source and the tail of another."""
    ours, theirs = tokens(text), tokens(other)
    return "".join(ours[: chance.randint(0, len(ours))] + theirs[chance.randint(0, len(theirs)) :])


def transplant(text: str, other: str, chance: random.Random) -> str:
    """A piece of another source in the middle."""
    ours, theirs = tokens(text), tokens(other)
    start, end = _span(theirs, chance, longest=200)
    place = chance.randint(0, len(ours))
    return "".join(ours[:place] + theirs[start:end] + ours[place:])


def truncate(text: str, _other: str, chance: random.Random) -> str:
    """Cut the end off, or the beginning."""
    place = chance.randint(0, len(text))
    return text[:place] if chance.random() < 0.8 else text[place:]


def insert_line(text: str, _other: str, chance: random.Random) -> str:
    """A line of preprocessor, attributes or another language, where it does not belong."""
    lines = text.split("\n")
    lines.insert(chance.randint(0, len(lines)), chance.choice(_LINES))
    return "\n".join(lines)


def redefine(text: str, _other: str, chance: random.Random) -> str:
    """A macro whose name the source uses."""
    names = _NAME.findall(text)
    if not names:
        return text
    name, body = (
        chance.choice(names),
        chance.choice([*names, *_HUGE_NUMBERS, *_TYPES, "", "(", "{"]),
    )
    form = chance.choice(
        ("#define {0} {1}\n", "#define {0}(x) {1}\n", "#define {0}(...) __VA_ARGS__ {1}\n")
    )
    return form.format(name, body) + text


def change_number(text: str, _other: str, chance: random.Random) -> str:
    """A number of an unexpected size or form."""
    return _replaced(text, _NUMBER, chance.choice(_HUGE_NUMBERS), chance)


def change_name(text: str, _other: str, chance: random.Random) -> str:
    """A name becomes another name of the source, or a type."""
    names = _NAME.findall(text)
    return _replaced(text, _NAME, chance.choice([*names, *_TYPES]), chance)


def nest(text: str, _other: str, chance: random.Random) -> str:
    """Something in very many brackets, stars, casts, blocks or conditions."""
    depth = chance.choice((3, 30, 300, 3000))
    before, after = chance.choice(
        (("(", ")"), ("{", "}"), ("[", "]"), ("((float4)(", "))"), ("1 ? ", " : 0"), ("-", ""), ("*", ""), ("&", ""),
         ("if (1) ", ""), ("for (;;) ", ""), ("f(", ")"), ("x[", "]"), ("struct { ", " } s;"), ("#if 1\n", "\n#endif\n"),
         ("1 + ", ""), ("~", ""), ("!", ""), ("sizeof ", ""), ("do ", " while (1);"), ("a.", ""), ("a->", ""))
    )  # fmt: skip
    found = tokens(text)
    start, end = _span(found, chance, longest=3)
    return "".join([*found[:start], before * depth, *found[start:end], after * depth, *found[end:]])


def insert_odd_text(text: str, _other: str, chance: random.Random) -> str:
    """Characters that editors show as nothing, as something else or not at all."""
    for _ in range(chance.randint(1, 3)):
        place = chance.randint(0, len(text))
        text = text[:place] + chance.choice(_ODD_TEXT) + text[place:]
    return text


MUTATIONS: Sequence[Mutation] = (
    flip_bytes, delete_tokens, duplicate_tokens, swap_tokens, splice, transplant, truncate, insert_line, redefine,
    change_number, change_name, nest, insert_odd_text,
)  # fmt: skip


def _span(found: Sequence[str], chance: random.Random, *, longest: int) -> tuple[int, int]:
    start = chance.randint(0, len(found))
    return start, min(len(found), start + chance.randint(1, longest))


def _replaced(text: str, pattern: re.Pattern[str], by: str, chance: random.Random) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = chance.choice(found)
    return text[: one.start()] + by + text[one.end() :]

"""The tokens of an OpenCL C source, and which of them are names that its author chose.

Decides what counts as a comment, a string, a token, a name and a class of numbers. Used to compare
sources (``shingles.py``), to count features (``workers/source/static_features.py``) and to read
code without comments. Imports no other module of LLMPerf, because child processes that parse
sources load this module.
"""

from __future__ import annotations

import re

_COMMENT = r"//(?:\\\r?\n|[^\n])*+|/\*.*?(?:\*/|\Z)"
_TEXT = r"""\"(?:\\(?:\r?\n|.)|[^\"\\\n])*+\"?|'(?:\\(?:\r?\n|.)|[^'\\\n])*+'?"""
"""A string without a closing quote ends at the end of its line, as in a compiler. The possessive
``*+`` avoids backtracking, which would take time quadratic in the length of such a string."""
COMMENT_OR_TEXT = f"{_COMMENT}|{_TEXT}"
"""Regular expression, to be compiled with ``re.DOTALL``."""
_COMMENT_OR_TEXT = re.compile(COMMENT_OR_TEXT, re.DOTALL)
_TOKEN = re.compile(
    rf"""
    (?P<comment>{_COMMENT})
  | (?P<text>{_TEXT})
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
    if else for while do switch case default break continue return goto sizeof typedef struct union enum const volatile
    restrict static inline extern register signed unsigned void bool char short int long float double half size_t
    ptrdiff_t intptr_t uintptr_t uchar ushort uint ulong kernel __kernel global __global local __local constant
    __constant private __private generic __generic read_only write_only read_write __read_only __write_only
    __read_write image1d_t image1d_array_t image1d_buffer_t image2d_t image2d_array_t image3d_t sampler_t event_t
    pipe __attribute__ reqd_work_group_size work_group_size_hint vec_type_hint unroll pragma define undef ifdef
    ifndef endif elif include defined line error true false NULL INFINITY NAN MAXFLOAT
        """,
    )
)
_BUILTINS = frozenset(
    re.findall(
        r"\w+",
        """
    get_work_dim get_global_size get_global_id get_local_size get_local_id get_num_groups get_group_id
    get_global_offset get_enqueued_local_size get_global_linear_id get_local_linear_id barrier work_group_barrier
    mem_fence read_mem_fence write_mem_fence prefetch printf select bitselect shuffle shuffle2 vec_step dot cross
    distance length normalize fast_distance fast_length fast_normalize min max clamp mix step smoothstep sign
    degrees radians abs abs_diff add_sat sub_sat hadd rhadd clz ctz popcount rotate mad24 mul24 mad_hi mad_sat mul_hi
    upsample fma mad fabs fmin fmax fdim fmod fract frexp ldexp ilogb logb modf nan nextafter remainder remquo rint
    round trunc floor ceil sqrt rsqrt cbrt hypot pow pown powr rootn exp exp2 exp10 expm1 log log2 log10 log1p sin
    cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sinpi cospi tanpi asinpi acospi atanpi atan2pi
    sincos erf erfc tgamma lgamma lgamma_r copysign maxmag minmag isequal isnotequal isgreater isgreaterequal isless
    islessequal islessgreater isfinite isinf isnan isnormal isordered isunordered signbit any all wait_group_events
        """,
    )
)
_BUILTIN_SHAPES = re.compile(
    r"(?:u?char|u?short|u?int|u?long|half|float|double)(?:2|3|4|8|16)"
    r"|(?:native|half|atomic|atom|convert|as|async_work_group|read_image|write_image|get_image|sub_group"
    r"|work_group|vloada?|vstorea?|vload|vstore|memory_order|memory_scope)_?\w*"
    r"|CLK_\w+|M_\w+|(?:FLT|DBL|CHAR|SHRT|INT|LONG|UCHAR|USHRT|UINT|ULONG|SCHAR|HALF)_\w+|cl_khr_\w+"
)
_FLOAT_NUMBER = re.compile(r"(?i)(?!0x)(?:[\d.]*\.[\d.]*|\d+e[+-]?\d+)|0x[\da-f.]*p|\d+f\Z")


def without_comments(source: str) -> str:
    r"""Return a source with each comment replaced by a space; line numbers stay the same.

    >>> without_comments("a/* 1\n2 */b // c\n'//'")
    "a \nb  \n'//'"
    """
    return _COMMENT_OR_TEXT.sub(
        lambda match: match[0] if match[0][0] in "\"'" else _blank(match), source
    )


def without_texts(source: str) -> str:
    r"""Return a source with comments and strings replaced by spaces; line numbers stay the same.

    >>> without_texts("f(\"a kernel\"); // kernel")
    'f( );  '
    """
    return _COMMENT_OR_TEXT.sub(_blank, source)


def _blank(match: re.Match[str]) -> str:
    return " " + "\n" * match[0].count("\n")


def tokenize(source: str) -> list[str]:
    """Return the tokens of a source as written, without comments and white space.

    >>> tokenize("a[i] += 2.0f; // more")
    ['a', '[', 'i', ']', '+=', '2.0f', ';']
    """
    text = source.replace("\\\r\n", " ").replace("\\\n", " ")
    return [match.group() for match in _TOKEN.finditer(text) if match.lastgroup != "comment"]


def is_builtin(word: str) -> bool:
    """Whether ``word`` is a keyword or built-in, which means the same in every OpenCL C source."""
    return word in _KEYWORDS or word in _BUILTINS or _BUILTIN_SHAPES.fullmatch(word) is not None


def number_class(token: str) -> str:
    """Return the class of a number literal: ``0``, ``1``, ``int`` or ``float``."""
    if token in {"0", "1"}:
        return token
    return "float" if _FLOAT_NUMBER.match(token) else "int"

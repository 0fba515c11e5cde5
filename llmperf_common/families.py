"""Which kernels are near duplicates of each other, and the family id that says so.

Owns the normal form of a source (comments and names gone), the candidate search (MinHash LSH) and the
exact check (Jaccard). Does not own what families are used for: ``splits.py`` keeps one on one side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

SHINGLE_TOKENS = 5
MIN_JACCARD = 0.85
"""Sources whose shingle sets overlap by at least this share are one family."""
_LSH_THRESHOLD = 0.75
"""Below MIN_JACCARD: MinHash only estimates, and a candidate missed is a duplicate across a split."""
_NUM_PERMUTATIONS = 128
_MINHASH_SEED = 1
_MAX_ALL_PAIRS = 300
"""Up to so many different sources every pair is compared: faster than loading datasketch."""

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
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


def tokenize(source: str) -> list[str]:
    """Return the tokens of a source: comments and white space left out, everything else as written.

    >>> tokenize("a[i] += 2.0f; // more")
    ['a', '[', 'i', ']', '+=', '2.0f', ';']
    """
    text = source.replace("\\\r\n", " ").replace("\\\n", " ")
    return [match.group() for match in _TOKEN.finditer(text) if match.lastgroup != "comment"]


def normalize(source: str) -> list[str]:
    """Return the tokens with names and numbers replaced by what stays the same in a copy.

    Names that are neither keywords nor OpenCL built-ins become ``v0``, ``v1``, ... by first appearance;
    numbers become their class (``0``, ``1``, ``int``, ``float``), texts become ``text``.

    >>> normalize("float sum = x[gid] * 2;") == normalize("float acc = y[id] * 3;")
    True
    """
    names: dict[str, str] = {}
    found = []
    for token in tokenize(source):
        first = token[0]
        if first.isdigit() or (first == "." and len(token) > 1 and token[1].isdigit()):
            found.append(_number_class(token))
        elif first in "\"'":
            found.append("text")
        elif (first.isalpha() or first == "_") and not is_builtin(token):
            found.append(names.setdefault(token, f"v{len(names)}"))
        else:
            found.append(token)
    return found


def is_builtin(word: str) -> bool:
    """Whether ``word`` means the same in every OpenCL C source."""
    return word in _KEYWORDS or word in _BUILTINS or _BUILTIN_SHAPES.fullmatch(word) is not None


def shingles(source: str) -> frozenset[str]:
    """Return the set of runs of SHINGLE_TOKENS normalised tokens; short sources are one shingle."""
    tokens = normalize(source)
    last = max(1, len(tokens) - SHINGLE_TOKENS + 1)
    return frozenset(" ".join(tokens[i : i + SHINGLE_TOKENS]) for i in range(last))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the size of the intersection over that of the union; two empty sets are equal.

    >>> jaccard(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    if not first and not second:
        return 1.0
    common = len(first & second)
    return common / (len(first) + len(second) - common)


def assign_families(kernels: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Return the family of each kernel: the smallest kernel_id of its near-duplicate component.

    Kernels of one source text are one family. The result depends on the set of kernels only, not on their
    order; adding kernels can merge families, so it is recomputed whenever sets are merged or split.

    Args:
        kernels: (kernel_id, source, name); the name is not looked at. A kernel without a source is a
            family of its own.

    Returns:
        kernel_id to family_id.
    """
    members: dict[frozenset[str], list[str]] = {}
    by_text: dict[str, frozenset[str]] = {}
    families: dict[str, str] = {}
    for kernel_id, source, _name in sorted(kernels):
        if not source.strip():
            families[kernel_id] = kernel_id
            continue
        found = by_text.get(source)
        if found is None:
            found = by_text.setdefault(source, shingles(source))
        members.setdefault(found, []).append(kernel_id)
    distinct = sorted(members, key=lambda one: min(members[one]))
    parents = list(range(len(distinct)))
    for first, second in _confirmed_pairs(distinct):
        _unite(parents, first, second)
    smallest: dict[int, str] = {}
    for index, one in enumerate(distinct):
        root = _find(parents, index)
        smallest[root] = min(smallest.get(root, min(members[one])), *members[one])
    for index, one in enumerate(distinct):
        families.update(dict.fromkeys(members[one], smallest[_find(parents, index)]))
    return families


def family_sizes(families: Mapping[str, str]) -> dict[str, int]:
    """Return the number of kernels of each family."""
    sizes: dict[str, int] = {}
    for family in families.values():
        sizes[family] = sizes.get(family, 0) + 1
    return sizes


def _confirmed_pairs(distinct: Sequence[frozenset[str]]) -> Iterable[tuple[int, int]]:
    if len(distinct) <= _MAX_ALL_PAIRS:
        yield from _all_pairs(distinct)
        return
    # Imported here: datasketch loads scipy, which takes a second.
    from datasketch import MinHash, MinHashLSH  # noqa: PLC0415

    sketches = MinHash.bulk(
        [[shingle.encode() for shingle in one] for one in distinct],
        num_perm=_NUM_PERMUTATIONS,
        seed=_MINHASH_SEED,
    )
    index = MinHashLSH(threshold=_LSH_THRESHOLD, num_perm=_NUM_PERMUTATIONS)
    for position, sketch in enumerate(sketches):
        for candidate in index.query(sketch):
            if jaccard(distinct[candidate], distinct[position]) >= MIN_JACCARD:
                yield candidate, position
        index.insert(position, sketch)


def _all_pairs(distinct: Sequence[frozenset[str]]) -> Iterable[tuple[int, int]]:
    for second, one in enumerate(distinct):
        for first in range(second):
            # The sizes alone bound the overlap.
            few, many = sorted((len(distinct[first]), len(one)))
            if few >= MIN_JACCARD * many and jaccard(distinct[first], one) >= MIN_JACCARD:
                yield first, second


def _find(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _unite(parents: list[int], first: int, second: int) -> None:
    a, b = _find(parents, first), _find(parents, second)
    parents[max(a, b)] = min(a, b)


def _number_class(token: str) -> str:
    if token in {"0", "1"}:
        return token
    return "float" if _FLOAT_NUMBER.match(token) else "int"

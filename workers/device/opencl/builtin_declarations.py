"""Declare the built-in functions of OpenCL C 1.2 that a text calls, and no others.

PoCL reads clang's header ``opencl-c.h`` with its 10,000 declarations at each build, which takes
several times longer than all other parts of a small build. ``copy_program.py`` builds copies of
kernels with the declarations of this module in place of the header. A name gets all overloads that
the header has for it (OpenCL C 1.2 with doubles and without values of type half), so that a call
means the same; a test compares both.

A template is ``domain: result(parameters)``. The domain gives the element types and the numbers of
lanes. In the rest ``T`` is a type of the domain, ``S`` its element type, ``Tu`` the unsigned
integers of the same size, ``Tl`` the signed ones, ``Ti`` as many ``int``. ``T*`` is a pointer to
private, local or global memory, ``T@`` to global or local memory that others change, ``S^`` to
memory of any kind that is only read. Each kind of memory gets a declaration of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

_SIGNED = ("char", "short", "int", "long")
_INTEGERS = (*_SIGNED, *(f"u{one}" for one in _SIGNED))
_FLOATS = ("float", "double")
_ALL = (*_INTEGERS, *_FLOATS)
_WIDTHS = (1, 2, 3, 4, 8, 16)
_OF_SIZE = {"char": "char", "short": "short", "int": "int", "long": "long"}
_OF_SIZE |= {f"u{one}": one for one in _SIGNED} | {"float": "int", "double": "long"}
"""The signed integer that is as large as an element type."""
_SPACES = {
    "*": ("__private {}*", "__local {}*", "__global {}*"),
    "@": ("volatile __local {}*", "volatile __global {}*"),
    "^": tuple(f"const __{space} {{}}*" for space in ("private", "local", "global", "constant")),
}

_DOMAINS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "F": (_FLOATS, _WIDTHS),
    "F1": (_FLOATS, (1,)),
    "Fv": (_FLOATS, (2, 3, 4, 8, 16)),
    "F4": (_FLOATS, (1, 2, 3, 4)),
    "F34": (_FLOATS, (3, 4)),
    "f": (("float",), _WIDTHS),
    "f1": (("float",), (1,)),
    "f4": (("float",), (1, 2, 3, 4)),
    "I": (_INTEGERS, _WIDTHS),
    "Iv": (_INTEGERS, (2, 3, 4, 8, 16)),
    "i": (_SIGNED, _WIDTHS),
    "i32": (("int", "uint"), _WIDTHS),
    "w": (("int", "uint"), (1,)),
    "W": (("int", "uint", "long", "ulong"), (1,)),
    "A": (_ALL, _WIDTHS),
    "": (("int",), (1,)),
}
"""Element types and numbers of lanes."""

_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        """acos acosh acospi asin asinh asinpi atan atanh atanpi cbrt ceil cos cosh cospi erfc erf exp
        exp2 exp10 expm1 fabs floor lgamma log log2 log10 log1p logb rint round rsqrt sin sinh sinpi
        sqrt tan tanh tanpi tgamma trunc degrees radians sign""",
        "const",
        ("F: T(T)",),
    ),
    (
        """half_cos half_exp half_exp2 half_exp10 half_log half_log2 half_log10 half_recip half_rsqrt
        half_sin half_sqrt half_tan native_cos native_exp native_exp2 native_exp10 native_log
        native_log2 native_log10 native_recip native_rsqrt native_sin native_sqrt native_tan""",
        "const",
        ("f: T(T)",),
    ),
    (
        """atan2 atan2pi copysign fdim fmod hypot maxmag minmag nextafter pow powr remainder""",
        "const",
        ("F: T(T, T)",),
    ),
    ("half_divide half_powr native_divide native_powr", "const", ("f: T(T, T)",)),
    ("fmax fmin", "const", ("F: T(T, T)", "Fv: T(T, S)")),
    ("fma mad", "const", ("F: T(T, T, T)",)),
    ("fract modf sincos", "", ("F: T(T, T*)",)),
    ("frexp lgamma_r", "", ("F: T(T, Ti*)",)),
    ("remquo", "", ("F: T(T, T, Ti*)",)),
    ("pown rootn", "const", ("F: T(T, Ti)",)),
    ("ldexp", "const", ("F: T(T, Ti)", "Fv: T(T, int)")),
    ("ilogb", "const", ("F: Ti(T)",)),
    ("nan", "const", ("F: T(Tu)",)),
    ("mix", "const", ("F: T(T, T, T)", "Fv: T(T, T, S)")),
    ("step", "const", ("F: T(T, T)", "Fv: T(S, T)")),
    ("smoothstep", "const", ("F: T(T, T, T)", "Fv: T(S, S, T)")),
    ("add_sat hadd rhadd mul_hi rotate sub_sat", "const", ("I: T(T, T)",)),
    ("clz popcount", "const", ("I: T(T)",)),
    ("mad_hi mad_sat", "const", ("I: T(T, T, T)",)),
    ("mad24", "const", ("i32: T(T, T, T)",)),
    ("mul24", "const", ("i32: T(T, T)",)),
    ("abs", "const", ("I: Tu(T)",)),
    ("abs_diff", "const", ("I: Tu(T, T)",)),
    ("max min", "const", ("A: T(T, T)", "Iv: T(T, S)", "Fv: T(T, S)")),
    ("clamp", "const", ("A: T(T, T, T)", "Iv: T(T, S, S)", "Fv: T(T, S, S)")),
    ("dot distance", "const", ("F4: S(T, T)",)),
    ("length", "const", ("F4: S(T)",)),
    ("normalize", "const", ("F4: T(T)",)),
    ("cross", "const", ("F34: T(T, T)",)),
    ("fast_distance", "const", ("f4: S(T, T)",)),
    ("fast_length", "const", ("f4: S(T)",)),
    ("fast_normalize", "const", ("f4: T(T)",)),
    (
        """isequal isnotequal isgreater isgreaterequal isless islessequal islessgreater isordered
        isunordered""",
        "const",
        ("F1: int(T, T)", "Fv: Tl(T, T)"),
    ),
    ("isfinite isinf isnan isnormal signbit", "const", ("F1: int(T)", "Fv: Tl(T)")),
    ("any all", "const", ("i: int(T)",)),
    ("bitselect", "const", ("A: T(T, T, T)",)),
    ("select", "const", ("A: T(T, T, Tl)", "A: T(T, T, Tu)")),
    (
        """get_global_size get_global_id get_local_size get_local_id get_num_groups get_group_id
        get_global_offset""",
        "const",
        (": size_t(uint)",),
    ),
    ("get_work_dim", "const", (": uint(void)",)),
    ("barrier", "convergent", (": void(cl_mem_fence_flags)",)),
    ("mem_fence read_mem_fence write_mem_fence", "", (": void(cl_mem_fence_flags)",)),
    (
        "atomic_add atomic_sub atomic_min atomic_max atomic_and atomic_or atomic_xor",
        "",
        ("w: T(T@, T)",),
    ),
    ("atomic_xchg", "", ("w: T(T@, T)", "f1: T(T@, T)")),
    ("atomic_inc atomic_dec", "", ("w: T(T@)",)),
    ("atomic_cmpxchg", "", ("w: T(T@, T, T)",)),
    (
        "atom_add atom_sub atom_xchg atom_min atom_max atom_and atom_or atom_xor",
        "",
        ("W: T(T@, T)",),
    ),
    ("atom_inc atom_dec", "", ("W: T(T@)",)),
    ("atom_cmpxchg", "", ("W: T(T@, T, T)",)),
)
"""Groups of functions: their names, the attribute of their declarations, and their templates."""

_PATTERNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (r"vload(2|3|4|8|16)", "pure", ("A/: T(size_t, S^)",)),
    (r"vstore(2|3|4|8|16)", "", ("A/: void(T, size_t, S*)",)),
    (r"vloada?_half(|2|3|4|8|16)", "pure", ("f/: T(size_t, half^)",)),
    (r"vstorea?_half(|2|3|4|8|16)(?:_rt[ezpn])?", "", ("F/: void(T, size_t, half*)",)),
)
"""Like ``_GROUPS``, for names that match a pattern; its group is the number of lanes."""


_CALLED = re.compile(r"\b[a-z]\w+(?=\s*\()")
_CONVERSION = re.compile(
    rf"convert_({'|'.join(_ALL)})(|2|3|4|8|16)(?:_sat)?(?:_rt[ezpn])?",
)
_PLACEHOLDER = re.compile(r"\b(T[uli]?|S|half)\b([*@^]?)")


def declarations(source: str) -> str:
    r"""Return the declarations of the built-in functions that ``source`` calls, as one line.

    A function that is not known here gets no declaration.

    >>> declarations("float f(float a) { return mad24(1, 2, 3) + g(a); }").count("mad24")
    12
    >>> declarations("float f(float a) { return g(a); }")
    '\n'
    """
    called = dict.fromkeys(_CALLED.findall(source))
    return "".join(one for name in called for one in _declared(name)) + "\n"


def is_declared(name: str) -> bool:
    """Whether ``declarations`` knows the function ``name``."""
    return bool(_declared(name))


@cache
def _by_name() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        name: (attribute, templates)
        for names, attribute, templates in _GROUPS
        for name in names.split()
    }


@cache
def _declared(name: str) -> tuple[str, ...]:
    """Return the declarations of one function; none for an unknown name."""
    if name == "printf":
        return ("int printf(__constant const char *format, ...);",)
    return tuple(dict.fromkeys(_lines(name)))


def _lines(name: str) -> Iterator[str]:
    lanes = ""
    attribute, templates = _by_name().get(name, ("", ()))
    for pattern, of_pattern, found in _PATTERNS:
        match = re.fullmatch(pattern, name)
        if match is not None:
            lanes, attribute, templates = match[1], of_pattern, found
    match = _CONVERSION.fullmatch(name)
    if match is not None:
        lanes, attribute, templates = match[2], "const", (f"A/: {match[1]}{match[2]}(T)",)
    words = f" __attribute__((overloadable{', ' * bool(attribute)}{attribute})) "
    for template in templates:
        domain, form = template.split(": ")
        elements, widths = _DOMAINS[domain.rstrip("/")]
        for element in elements:
            for width in (int(lanes or 1),) if "/" in domain else widths:
                for text in _filled(form, element, "" if width == 1 else str(width)):
                    result, parameters = text.split("(", 1)
                    yield f"{result}{words}{name}({parameters};"


def _filled(form: str, element: str, lanes: str) -> Iterator[str]:
    """Yield a form with its types, once for each kind of memory that it points to."""
    size = _OF_SIZE[element]
    types = {
        "T": element + lanes, "Tu": f"u{size}{lanes}", "Tl": size + lanes, "Ti": f"int{lanes}",
        "S": element, "half": "half",
    }  # fmt: skip
    spaces = next((_SPACES[sign] for sign in _SPACES if sign in form), ("",))
    for space in spaces:

        def typed(match: re.Match[str], space: str = space) -> str:
            name = types[match[1]]
            return space.format(name) if match[2] else name

        yield _PLACEHOLDER.sub(typed, form)

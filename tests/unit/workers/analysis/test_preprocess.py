"""Where pcpp alone differs from a device's preprocessor, so that other code would be counted."""

import pytest

from workers.analysis.copy.conditions import CLANG_INTMAX_BITS, ConditionError, is_true
from workers.analysis.copy.device_macros import KEYWORDS, KNOWN_IN_CONDITIONS
from workers.analysis.copy.other_devices import varies_by_device
from workers.analysis.copy.preprocess import ExpansionError, expand_macros
from workers.analysis.copy.preprocessor_tokens import new_lexer
from workers.source.clang.parse import translate


def expanded(defines: str, code: str) -> str:
    lines = [f"#define {one}" for one in filter(None, defines.split("; "))]
    text = expand_macros("\n".join([*lines, "// here", code]))
    return " ".join(line for line in text.splitlines() if not line.startswith("#line")).strip()


def selects(condition: str, before: str = "") -> bool:
    return "yes" in expand_macros(f"{before}\n#if {condition}\nyes\n#else\nno\n#endif")


@pytest.mark.parametrize(
    ("defines", "code", "tokens"),
    [
        ("NEG(x) -x", "y = -NEG(n);", "y = - -n;"),
        ("NEG(x) -x", "y = NEG(-n);", "y = - -n;"),
        ("N -1", "y = a-N;", "y = a- -1;"),
        ("P +b", "y = a+P;", "y = a+ +b;"),
        ("AND &b", "y = a&AND;", "y = a& &b;"),
        ("LESS <", "y = a LESS< b;", "y = a < < b;"),
        ("SET =", "y +SET 1;", "y + = 1;"),
        ("EQUAL =", "y EQUAL= 1;", "y = = 1;"),
        ("AT *p", "y = a/AT;", "y = a/ *p;"),
        ("SLASH /", "y = a SLASH/ b;", "y = a / / b;"),
        ("E", "y = -E-x;", "y = - -x;"),
        ("N 0xE", "y = N-1;", "y = 0xE -1;"),
        ("N 1", "y = N.5f;", "y = 1 .5f;"),
        ("DOT .", "y = v DOT 5;", "y = v . 5;"),
        ("DOT .", "y = DOT 5 + DOT/**/5;", "y = . 5 + . 5;"),
        ("TEXT(x) x", 'y = TEXT(L)"a";', 'y = L "a";'),
        ("JOIN(a, b) a##b", "JOIN(x, 1) JOIN(-, -)x;", "x1 -- x;"),
        ("N x", "N.y[N]->z ^= a---b&&&c;", "x.y[x]->z ^= a-- -b&& &c;"),
        ("V(f, ...) f(__VA_ARGS__)", "int f(int, ...); V(f, 1, 2);", "int f(int, ...); f( 1, 2);"),
    ],
)
def test_two_tokens_stay_two(defines, code, tokens):
    assert expanded(defines, code) == tokens


def test_a_line_that_goes_on_stays_one_token():
    assert "ab" in expand_macros("int a\\\nb;")
    assert "a++;" in expand_macros("a+\\\n+;").replace("\n", "")


NUMBERS = """0.1F 0.1f 1F .5f 1.f 1.e2f 1e2 1.0e-2 2e+2F 10ULL 10ul 0x1p3f 0x1.8p-2F 0xFF 1.0h 2.5d
1.s0 0b11"""
NAMES_OF_PARTS = "F f h d e2 e s0 ULL ul x1p3f p3f p FF xFF b11 x1 E"


@pytest.mark.parametrize("number", NUMBERS.split())
def test_no_macro_is_expanded_within_a_number(number):
    defines = "; ".join(f"{name} 99" for name in NAMES_OF_PARTS.split())
    assert expanded(defines, f"y = {number};") == f"y = {number};"


TRUE = """
true|!false|-7 % 3 == -1|-7 / 3 == -2|7 / -3 == -2|7 % -3 == 1|0xffffffffffffffff > 0
18446744073709551615 > 0|100ULL > 1|0b11 == 3|017 == 15|-1 > 0u|!(-1 < 0u)|(0u < 1) - 2 < 0|0 || 2u
(1 ? -1 : 0u) > 0|'a' == 97|'\\377' < 0|'\\n' == 10|'ab' == 24930|L'b' == 98|1 ? 2 : 1 / 0|!(0 && 1 / 0)
(1, 2) == 2|1 ? 0, 1 : 0|1 << 2 + 1 == 8|-1 >> 1 == -1|(-1 >> 200) == -1|-9223372036854775807 - 1 < 0
__STDC__ == 1|__STDC_VERSION__ >= 199901L|__CHAR_BIT__ == 8|CHAR_BIT == 8|INT_MAX == 2147483647
__INT_MAX__ == INT_MAX|INT_MIN + INT_MAX == -1|SHRT_MIN == -32768|UCHAR_MAX == 255|USHRT_MAX == 65535
-1 > UINT_MAX|LONG_MAX > UINT_MAX|ULONG_MAX > 0|LONG_MIN < 0|CHAR_MIN == -128|FLT_RADIX == 2
FLT_MANT_DIG == 24|DBL_MANT_DIG == 53|FLT_MIN_10_EXP == -37|__SIZEOF_LONG__ == 8
__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__|!defined(__cplusplus)|defined M_PI|defined(NULL)
defined(CLK_LOCAL_MEM_FENCE) && defined(FLT_MAX) && defined(M_PI_F) && defined(MAXFLOAT)
!unknown|!__cplusplus
"""
TRUE = tuple(
    one for line in TRUE.split("\n") for one in line.split("|") if one and "||" not in line
)
MALFORMED = '1 +|1 2|1.0|1 / 0|FOO(1)|08|1uu|0xfg|()|(1|1 ? 2|1, 2|\'|"a"|M_PI > 3|--1'


@pytest.mark.parametrize("condition", [*TRUE, "0 || 2u", "(2 || 0u) - 2 < 0"])
def test_a_condition_has_its_value_of_c(condition):
    assert selects(condition)
    assert not selects(f"!({condition})")


@pytest.mark.parametrize("condition", ["1 << 63 < 0", "-1u >> 63 == 1", "-1u == ULONG_MAX"])
def test_the_numbers_of_a_condition_have_64_bits_and_others_are_told(condition):
    """Clang gives them 128 bits in OpenCL C."""
    assert selects(condition)
    assert varies_by_device(f"#if {condition}\nint one;\n#endif")


@pytest.mark.parametrize("condition", MALFORMED.split("|"))
def test_a_malformed_condition_is_refused(condition):
    with pytest.raises(ExpansionError):
        selects(condition)


def words_of(condition: str) -> list[str]:
    lexer = new_lexer()
    lexer.input(condition)
    return [token.value for token in iter(lexer.token, None) if token.type != "CPP_WS"]


def test_conditions_have_the_value_that_clang_gives():
    conditions = [one for one in TRUE if "defined" not in one]
    conditions += ["1 << 63 < 0", "-1u >> 63 == 1", "1 << 64", "1 << 128", "1 << -1", "-1 >> -1"]
    conditions += [one for one in MALFORMED.split("|") if one != "--1"]
    text = "".join(f"#if {one}\n#error yes\n#else\n#error no\n#endif\n" for one in conditions)
    ours, clangs = [], [set() for _ in conditions]
    for problem in translate(text, ("-cl-std=CL2.0",)).diagnostics:
        if problem.severity >= 3:
            clangs[(problem.location.line - 1) // 5].add(problem.spelling)
    for one in conditions:
        try:
            value = is_true(words_of(one), KEYWORDS | KNOWN_IN_CONDITIONS, CLANG_INTMAX_BITS)
        except ConditionError:
            value = None
        ours.append(value)
    wanted = [{"yes"} <= one if len(one) == 1 else None for one in clangs]
    assert dict(zip(conditions, ours, strict=True)) == dict(zip(conditions, wanted, strict=True))


def test_macros_that_each_device_has_decide_conditions_but_stay_in_the_text():
    source = "#ifndef M_PI\n#define M_PI 3\n#endif\nfloat x = M_PI; int y = INT_MAX;"
    assert "float x = M_PI; int y = INT_MAX;" in expand_macros(source)
    assert "= 3;" in expand_macros(f"#undef M_PI\n{source}")
    assert "= 3;" in expand_macros(source, "-U M_PI")
    assert "= 3.1;" in expand_macros(source, "-DM_PI=3.1")
    assert not selects("INT_MAX", "#undef INT_MAX")


@pytest.mark.parametrize("standard", ["CL1.2", "CL2.0"])
def test_known_macros_are_those_of_clang(standard):
    text = "".join(f"#ifndef {name}\n#error {name}\n#endif\n" for name in KNOWN_IN_CONDITIONS)
    text += "".join(
        f"#if {name} != {number.value}{'u' * number.is_unsigned}\n#error value of {name}\n#endif\n"
        for name, number in KNOWN_IN_CONDITIONS.items()
        if number is not None and name != "LONG_MIN"
    )
    problems = translate(f"constant int none = 0;\n{text}", (f"-cl-std={standard}",)).diagnostics
    assert [one.spelling for one in problems if one.severity >= 3] == []


def test_what_only_pcpp_defines_is_not_defined():
    assert not selects("defined(__PCPP__)")
    assert "= __DATE__;" in expand_macros("constant char *x = __DATE__;")


@pytest.mark.parametrize(
    "condition",
    [
        "defined(__SPIR64__)",
        "!defined(__GNUC__)",
        "__clang_major__ >= 1",
        "defined(cl_intel_subgroups)",
        "defined(__opencl_c_subgroups)",
        "defined(__has_builtin)",
        "__has_builtin(__builtin_expect)",
        "defined(__NV_CL_C_VERSION) && !defined(__AMDGCN__)",
        "__SIZEOF_POINTER__ == 1",
        "defined(_OPENCL_H_)",
        "defined(__OPENCL_C_\\\nBASE_H__)",
        "CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE > 0",
        "defined(__FMA__)",
    ],
)
def test_conditions_that_devices_decide_are_told(condition):
    assert varies_by_device(f"#if {condition}\nint one;\n#endif\nint two;")


@pytest.mark.parametrize(
    "source",
    [
        "#ifndef __ELF__\n#define __ELF__\nint one;\n#endif",
        "#define C defined(__unix__)\n#if C\nint one;\n#endif",
        "#define CAT(a, b) a##b\n#if CAT(_,_ELF__)\nint one;\n#endif",
        '__constant char a[] = "/*";\n#ifdef __ELF__\nint one;\n#endif\n__constant char b[] = "*/";',
        "#ifdef USE\n#else\n#ifdef __GPU__\n#ifdef __unix__\nint one;\n#endif\n#endif\n#endif",
        "#ifndef min\n#define min(a, b) a\n#endif\nint one = min(1, 2);",
        "#if DBL_RADIX > 1\nint one;\n#endif",
        "#if defined(__GNUC__) && __GNUC__ == 4\nint one;\n#endif",
    ],
)
def test_macros_of_devices_are_found_where_conditions_meet_them(source):
    assert varies_by_device(source)


def test_a_macro_of_devices_may_be_defined_after_it_is_tested():
    assert varies_by_device("#ifdef __k8\nint one;\n#endif\n#define __k8\nint two;")
    assert varies_by_device("??=ifdef __k8\nint one;\n??=endif\nint two;")
    assert varies_by_device("#ifndef _OPENCL_H_\n#define _OPENCL_H_\nint one;\n#endif\nint two;")


@pytest.mark.parametrize(
    "source",
    [
        "#ifndef __MINE_H__\n#define __MINE_H__\nint one;\n#endif",
        "#if !defined(_H_H_)\n#define _H_H_\nint one;\n#endif",
        "#if !defined _TYPE\n#define _TYPE float\n#endif\n_TYPE one;",
        "#ifdef _USE_DOUBLE\ndouble one;\n#else\nfloat one;\n#endif",
        "#ifdef __DEBUG__\nint one;\n#endif",
        "#if IMAGE_WIDTH > 64\nint one;\n#endif",
        "#ifdef INT_TYPE\nint one;\n#endif",
        "#ifndef M_TILE\n#define M_TILE 16\n#endif\nint one = M_TILE;",
    ],
)
def test_macros_of_users_are_no_devices_macros(source):
    assert not varies_by_device(source)


def test_conditions_that_all_devices_decide_alike_are_not_told():
    assert not varies_by_device("#if INT_MAX > 9 && -1 < 0 && true\nint one;\n#endif")
    assert not varies_by_device("#ifdef cl_amd_fp64\n#pragma OPENCL EXTENSION x : enable\n#endif")

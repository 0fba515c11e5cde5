"""Texts that another device's compiler reads otherwise, and texts that all devices read alike."""

from __future__ import annotations

import pytest

from workers.analysis.copy import other_devices
from workers.analysis.copy.device_macros import may_be_a_devices
from workers.analysis.copy.other_devices import varies_by_device
from workers.analysis.copy.preprocess import ExpansionError, expand_macros

NESTED = ("__ELF__", "__unix__", "__unix", "__MMX__", "__FXSR__", "__SEG_FS", "__SSE__", "__k8")
MANY = (*NESTED[3:], "__AVX__", "__SSE2__", "__linux__", "__clang__")
PASTING = "#define P(a, b) a##b\n#define C(a, b) P(a, b)\n"
STRINGS = "#define S(x) #x\n#define T(x) S(x)\n"
OTHER = "int other;\n#endif\nint one;"


def asked(*names: str) -> str:
    """Return a condition for each name around nothing."""
    return "".join(f"#ifdef {one}\n#endif\n" for one in names)


VARYING = {
    "nested": "".join(f"#ifdef {one}\n" for one in NESTED) + OTHER + "\n#endif" * (len(NESTED) - 1),
    "two and not a third": "#if defined(__x86_64__) && defined(__SSE2__) && !defined(__NVPTX__)\n"
    + OTHER,
    "a version between": f"#if __OPENCL_VERSION__ >= 200 && __OPENCL_VERSION__ < 300\n{OTHER}",
    "an old C on a new device": "#if __OPENCL_VERSION__ == 300 && __OPENCL_C_VERSION__ == 120\n"
    + OTHER,
    "a version that pasting builds": f"{PASTING}enum {{ M = C(__OPE,NCL_VERSION__) / 100 }};",
    "a macro that pasting builds": f"{PASTING}int one = C(__EL,F__);",
    "a pasted macro": f"{PASTING}enum {{ v_1 = 9, v___ELF__ = 1, M = C(v_,__ELF__) }};",
    "a pasted built-in": f"{PASTING}enum {{ v_min = 9, M = C(v_,min) }};",
    "a pasted macro in a condition": f"{PASTING}#define v___ELF__ 1\n#if C(v_,__ELF__)\n{OTHER}",
    "a macro that is pasted twice": f"{PASTING}int one = C(v_, C(__EL,F__));",
    "a string": f"{STRINGS}enum {{ M = sizeof(T(__ELF__)) == 2 ? 9 : 1 }};",
    "a string of a built-in": f"{STRINGS}enum {{ M = sizeof(T(INT_MAX)) == 2 ? 9 : 1 }};",
    "a string by a continued line": "#define S(line) \\\n#line\n#define T(x) S(x)\n"
    "enum { M = sizeof(T(min)) };",
    "a macro in the text": "int one = __BIGGEST_ALIGNMENT__;",
    "a text of the compiler": "int one = sizeof(__VERSION__) + sizeof(__FILE__);",
    "a value that is no version": "#if __clang_major__ > 9\n#endif\nint one;",
    "many": f"{asked(*MANY[:6])}#if defined(__llvm__) && !defined(__AVX512F__)\n{OTHER}",
    "too many": asked(*MANY),
    "another branch": f"#if 0\n#elifdef __k8__\n{OTHER}",
    "a digraph": f"%:ifdef __k8__\n{OTHER}",
    "the rounding of the compiler": f"#if __FLT_EVAL_METHOD__\n{OTHER}",
    "a header that a device may find": '#include "more.h"\n#ifndef M\n#define M 1\n#endif\nint a[M];',
    "wide numbers": f"#if 1 << 64\n{OTHER}",
}


@pytest.mark.parametrize("name", VARYING)
def test_a_text_that_devices_may_read_differently_is_told(name: str) -> None:
    assert varies_by_device(VARYING[name])


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("int a[M];", "-DM=(__OPENCL_VERSION__/100)"),
        ("int a[M];", "-D M=__BIGGEST_ALIGNMENT__"),
        (f"#if N\n{OTHER}", "-DN=defined(__ELF__)"),
        ("int one = C(v_, min);", "-DC(a,b)=P(a,b) -DP(a,b)=a##b"),
    ],
)
def test_build_options_are_a_part_of_the_text(source: str, options: str) -> None:
    assert varies_by_device(source, options)


ALIKE = {
    "pragmas": "#if defined(cl_khr_fp64) || defined(cl_amd_fp64)\n"
    "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\ndouble one;",
    "a pragma or another": "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    "#elif defined(cl_amd_fp64)\n#pragma OPENCL EXTENSION cl_amd_fp64 : enable\n#else\n"
    '#error "no doubles"\n#endif\ndouble one;',
    "doubles": "#ifdef cl_khr_fp64\ndouble one;\n#endif\nfloat other;",
    "a header that is left out": '#ifdef USE\n#include "more.h"\n#endif\nint one;',
    "versions": "#if __OPENCL_VERSION__ >= 120\nint one;\n#else\nint one;\n#endif",
    "a version that is defined": "#ifdef __OPENCL_VERSION__\nint one;\n#endif",
    "a guard": "#ifndef MINE_H\n#define MINE_H\nint one;\n#endif",
    "keywords": "#ifdef USE\n#endif\n__attribute__((reqd_work_group_size(8, 1, 1)))\n"
    "__kernel void k(__global float *restrict a, __local int *b) { a[get_global_id(0)] = M_PI_F; }",
    "pasted names": f"{PASTING}float4 f(int4 a) {{ return C(convert_, float4)(a) + C(as_,int) (1); }}",
    "a string": f"{STRINGS}#define WIDTH 4\n__constant char one[] = T(WIDTH);",
    "a definition in place of a device's": "#undef min\n#define min(a, b) a\nint one = min(1, 2);",
    "a macro of its own": "#define __ELF__ 3\nint one = __ELF__;",
    "a macro that it removes": "#undef __k8__\n#ifdef __k8__\nint other;\n#endif\nint one;",
    "a built-in that it removes": "#ifdef min\n#undef min\n#endif\nint f() { return min(1, 2); }",
    "many": asked(*MANY[:8]) + "int one;",
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_text_that_all_devices_read_alike_is_not_told(name: str) -> None:
    assert not varies_by_device(ALIKE[name])


def test_texts_that_would_take_long_are_told() -> None:
    short, long = (asked(*MANY[:4]) + "int one;\n" * number for number in (10, 10**4))
    assert not varies_by_device(short)
    assert varies_by_device(long)
    assert not varies_by_device(asked(MANY[0]) + "int one;\n" * 10**4), (
        "one question is always asked"
    )


def test_a_text_with_the_sign_of_a_mark_is_told() -> None:
    assert varies_by_device(f"int {other_devices._BEGIN}min_end_llmperf;")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('#define M 9\n#pragma push_macro("M")\n', r"line 2: #pragma push_macro"),
        ('#if 0\n#pragma pop_macro("M")\n#endif', r"line 2: #pragma pop_macro"),
        ('_Pragma("push_macro(\\"M\\")")', "push_macro"),
        ("#define S(x) _Pragma(#x)\nS(pu\\\nsh_macro(M))", "push_macro"),
        ("#if 0\n#elifdef M\n#endif", r"line 2: #elifdef"),
        ("#if 0\n#if 0\n#elifndef M\n#endif\n#endif", r"line 3: #elifndef"),
        ("#import <a>", r"line 1: #import"),
        ("#define F(...) (0 __VA_OPT__(+1))\nint one = F(1);", "__VA_OPT__"),
        ("/* %: */ int one;\n%:define M 9", r"near line 2: %:"),
        ("#if 0\n%\\\n:else\n#endif", r"near line 2: %:"),
        (
            "#define Q don't /*\n#define M 9\n// */\n",
            "line 1: a comment after an open quotation mark",
        ),
        ('#if 0\nsay "/*\n#endif\n%:define M 9\n// */\n', "line 2: a comment after an open"),
    ],
)
def test_what_clang_obeys_and_pcpp_does_not_is_refused(source: str, message: str) -> None:
    with pytest.raises(ExpansionError, match=message):
        expand_macros(source)


def test_a_digraph_in_a_string_or_comment_is_no_directive() -> None:
    expand_macros("__constant char a[] = \"100 %: \"; // %:\n/* %: */ __constant char b = '%';")
    expand_macros("#if 0\ndon't // say \"this\"\n#endif\n// don't\n/* don't */ int c; /* isn't */")


OF_USERS = "_CL_UTIL_H _CL_DEFINES M_TILE_H M_2_H ALIGN4 ALIGN8 double CL_TILE kernel_width size"
OF_COMPILERS = """_CL_ALWAYSINLINE M_SQRT1_2_H _MSC_VER __EMBEDDED_PROFILE__ __riscv_xlen
__powerpc64__ __gfx1100__ __GFX11__ __ARM_FEATURE_SVE __FLT_EVAL_METHOD__ __i386__"""


@pytest.mark.parametrize("name", OF_USERS.split())
def test_names_that_users_choose_are_no_devices_macros(name: str) -> None:
    assert not may_be_a_devices(name)


@pytest.mark.parametrize("name", OF_COMPILERS.split())
def test_names_that_compilers_define_are_devices_macros(name: str) -> None:
    assert may_be_a_devices(name)

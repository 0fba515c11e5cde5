"""Cutting a source: pieces, what a kernel reaches, what stays when it does not fit."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.prompt.source_pieces import kernel_piece, plain_source, reached, split_source
from trainer.prompt.truncation import CHARACTERS_PER_TOKEN, GAP, cut_source

SOURCE = """#define N 4
#define UNUSED 5
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef struct { float a; int b; } Pair; // a pair
constant float table[2] = {1.0f,
                           2.0f};
float near(float x);
inline float near(float x) { if (x > 0) { return far(x); } return N; }
float far(float x) { return table[0]; }
float other(float x) { return "}"[0]; }
__kernel void twin(__global Pair *a) { a[0].a = 1; }
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void f(__global Pair *a, int n)
{
  char c = '}';
  for (int i = 0; i < n; i++) { a[i].a = near(i); }
}
"""


def by_character(texts):
    """A token a character: lengths can be reckoned in the head."""
    return [np.array([ord(sign) for sign in text], dtype=np.int32) for text in texts]


def text_of(ids):
    return "".join(map(chr, ids))


def test_pieces_are_the_source_and_know_what_they_define():
    text = plain_source(SOURCE)
    pieces = split_source(text)
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) == 11
    assert pieces[0].names == {"N"}
    assert pieces[2].names == set()
    assert pieces[3].names == {"Pair"}
    assert pieces[4].names == {"table"}
    assert pieces[6].names == {"near"}
    assert pieces[10].names == {"f"}


def test_a_kernel_reaches_what_it_names_nearest_first():
    pieces = split_source(plain_source(SOURCE))
    first = kernel_piece(pieces, "f")
    assert first == 10
    order = reached(pieces, first)
    assert order[0] == 10
    assert set(order) == {10, 0, 3, 4, 5, 6, 7}
    assert order.index(6) < order.index(7) < order.index(4)


def test_the_kernel_with_a_body_is_taken_not_its_prototype():
    source = "kernel void g(global int *a);\nkernel void g(global int *a) {\na[0] = 1;\n}\n"
    assert kernel_piece(split_source(source), "g") == 1
    assert kernel_piece(split_source(source), "h") is None


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("kernel void f(){};#\n\"'\\/*=ab \té"), max_size=200))
def test_any_text_is_split_without_loss_and_cut_to_size(source):
    text = plain_source(source)
    assert plain_source(text) == text
    assert "".join(piece.text for piece in split_source(text)) == text
    cut = cut_source(source, "f", 40, by_character)
    assert cut is None or len(cut) <= 40


def test_what_the_kernel_does_not_reach_goes_first():
    text = plain_source(SOURCE)
    for capacity in (len(text) - 1, len(text) - 40):
        left = text_of(cut_source(SOURCE, "f", capacity, by_character))
        assert "#define N 4" in left
        assert "far(float x) {" in left
        for gone in ("UNUSED", "pragma", "other", "twin"):
            assert gone not in left


def test_then_the_farthest_callees_go_and_the_order_stays():
    pieces = split_source(plain_source(SOURCE))
    capacity = sum(len(pieces[index].text) for index in (10, 6, 5, 3, 0))
    left = text_of(cut_source(SOURCE, "f", capacity, by_character))
    assert "inline float near" in left
    assert "far(float x) {" not in left
    assert left == "".join(pieces[index].text for index in (0, 3, 5, 6, 10))


def test_then_the_middle_of_the_body_and_the_signature_stays():
    body = "".join(f"a[{number}] = {number};\n" for number in range(1000))
    source = (
        "float g(float x) { return x; }\nkernel void long_one(global float *a, int n) {\n"
        + body
        + "}\n"
    )
    left = text_of(cut_source(source, "long_one", 200, by_character))
    assert len(left) == 200
    assert left.startswith("kernel void long_one(global float *a, int n) {\na[0] = 0;\n")
    assert GAP in left
    assert left.endswith("a[999] = 999;\n}\n")
    before, after = left.split(GAP)
    signature = "kernel void long_one(global float *a, int n) {"
    assert len(before) - len(signature) == len(after) * 2 + 2  # 149 characters of capacity


def test_a_body_beyond_any_hope_is_cut_alike():
    line = "a[0] += 1;\n"
    short, long = (
        "kernel void f(global float *a) {\n" + line * number + "}\n" for number in (100, 5000)
    )
    assert len(short) < CHARACTERS_PER_TOKEN * 300 < len(long)
    assert text_of(cut_source(short, "f", 300, by_character)) == text_of(
        cut_source(long, "f", 300, by_character)
    )


def test_a_signature_that_does_not_fit_gives_nothing():
    assert cut_source(SOURCE, "f", 20, by_character) is None


def test_a_kernel_named_by_a_macro_is_cut_in_the_middle():
    source = (
        "#define NAME(x) x##_float\nkernel void NAME(f)(global float *a) {\n" + "a[0] = 1;\n" * 50
    )
    left = text_of(cut_source(source, "f_float", 120, by_character))
    assert len(left) == 120
    assert left.startswith("#define NAME")


def test_braces_that_do_not_match_keep_the_kernel_s_signature():
    source = (
        "void g() {\n#ifdef A\nif (1) {\n#else\nif (0) {\n#endif\n}\n}\n"
        + "kernel void f(global float *a) {\n"
        + "a[0] = 1;\n" * 50
        + "}\n"
    )
    left = text_of(cut_source(source, "f", 150, by_character))
    assert left.startswith("kernel void f(global float *a) {\na[0] = 1;")
    assert len(left) == 150


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("", ""),
        ("\n \n// only\n", ""),
        ("a  b\t c\r\n", "a b c\n"),
        ("#define A \\\n   1\n", "#define A \\\n1\n"),
        ("__global x__global __kernelx", "global x__global __kernelx\n"),
        ('x = "// no";', 'x = "// no";\n'),
    ],
)
def test_plain_sources(source, plain):
    assert plain_source(source) == plain


def test_a_megabyte_on_one_line_is_split_in_time():
    source = "int a; " * 150_000 + "kernel void f(global int *a) { a[0] = 1; }"
    start = time.process_time()
    assert len(split_source(source)) == 150_001
    assert time.process_time() - start < 5

"""The instrumented text: what is wrapped, what is left alone, what is refused. No device."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.reading import kernels_from_source
from workers.analysis.copy.edits import Edits
from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.other_devices import varies_by_device
from workers.analysis.copy.preprocess import ExpansionError, expand_macros
from workers.analysis.copy.rewriter import UnresolvedError
from workers.analysis.facts import kernel_facts
from workers.source.clang.parse import diagnose, parse


def body(source: str, name: str = "k") -> str:
    text = instrument(source, name).source
    return text[text.rindex("lp_room") :]


def test_wrappers_nest_in_the_order_they_were_opened():
    edits = Edits("a[b[i]]")
    edits.wrap(0, 7, "<", ">")
    edits.wrap(2, 6, "(", ")")
    edits.replace(2, 3, "B")
    edits.wrap(0, 7, "{", "}")
    assert edits.applied() == "<{a[(B[i])]}>"


def test_wrappers_of_ranges_that_share_an_end_nest_like_the_ranges():
    edits = Edits("c ? a : b;")
    edits.wrap(8, 9, "(", ")")
    edits.wrap(0, 9, "[", "]")
    edits.wrap(0, 1, "<", ">")
    assert edits.applied() == "[<c> ? a : (b)];"


def test_the_last_text_before_a_brace_is_outside_of_all_that_ends_there():
    edits = Edits("{f;}")
    edits.insert_last(3, " second")
    edits.insert_last(3, " first")
    edits.insert(1, " begin;")
    edits.wrap(1, 3, "{", "}")
    assert edits.applied() == "{ begin;{f;} first second}"
    edits = Edits("{}")
    edits.insert_last(1, " end; ")
    edits.insert(1, " begin;")
    assert edits.applied() == "{ begin; end; }"


def test_a_range_ends_where_its_brackets_are_closed():
    edits = Edits("x = (float4)(')' + y[0]), z")
    edits.wrap(4, 22, "<", ">")
    assert edits.applied() == "x = <(float4)(')' + y[0])>, z"


def test_offsets_are_bytes():
    edits = Edits("/* é */ x")
    edits.wrap(9, 10, "[", "]")
    assert edits.applied() == "/* é */ [x]"


@pytest.mark.parametrize("statement", ["for (;;) *a += 1;", "while (1) *a += 1;"])
def test_what_runs_at_the_end_of_a_body_is_outside_of_its_last_statement(statement):
    kernel = body(f"__kernel void k(__global int *a) {{ {statement}}}")
    assert kernel.rstrip().endswith(" += 1; } lp_end(lp_c); }")
    helper = f"void f(__global int *a) {{ int x, *p = &x; {statement}}}"
    edited = body(f"{helper} __kernel void k(__global int *a) {{ f(a); }}")
    assert re.search(r" \+= 1; } LP_FORGET\(\d\); }", edited)


def test_each_access_is_a_site_with_its_line_and_text():
    source = "#define AT(i) a[(i) * 2]\n__kernel void k(__global float *a,\n  __global int *b) {\n  AT(b[3]) = 1;\n}\n"
    sites = instrument(source, "k").sites
    assert [(one.line, one.text) for one in sites] == [(4, "a[(b[3]) * 2]"), (4, "b[3]")]


@pytest.mark.parametrize(
    "statement",
    ["x = sizeof(a[0]);", "p = &a[3];", "p = a + 3;", "float t[4]; t[x] = 1; ", "if (p == a) return;"],
)  # fmt: skip
def test_what_touches_no_buffer_is_no_site(statement):
    source = f"__kernel void k(__global float *a) {{ int x = 1; __global float *p; {statement} }}"
    assert instrument(source, "k").sites == ()


def test_arrays_of_fixed_size_are_clipped():
    source = "__constant int T[5] = {0}; __kernel void k(__global int *a) { int t[7]; t[a[0]] = T[a[1]]; }"
    text = body(source)
    assert re.search(r"t\[lp_clip\(lp_c, \(ulong\)\(.*\), 7ul\)\]", text)
    assert ", 5ul)]" in text


@pytest.mark.parametrize(
    ("statement", "tag"),
    [
        ("p = t;", "p = (*(__typeof__(t) *)lp_named(lp_c, 0, (ulong)&t, sizeof(t)));"),
        ("p = &t[a[0]];", "[(*(__global int *)lp_touch("),
        ("p = &t[7];", "sizeof(t)))[7];"),
        ("*(t + 3) = 1;", "lp_touch(lp_c, 1, (ulong)&(*((*(__typeof__(t) *)lp_named("),
        ("p = m.v;", "(*(__typeof__(m) *)lp_named(lp_c, 0, (ulong)&m, sizeof(m))).v;"),
        ("both(&x);", "both(lp_c, &(*(__typeof__(x) *)lp_named("),
        ("both(y); ", "both(lp_c, (*(__typeof__(y) *)lp_named("),
    ],
)
def test_a_variable_that_becomes_a_pointer_becomes_a_tag(statement, tag):
    source = f"""void both(int *n) {{ *n = n[1]; }}
    __kernel void k(__global int *a) {{ __local int t[7]; __local struct {{ int v[3]; }} m; __local int *p; int x, y[2]; {statement} }}"""
    made = instrument(source, "k")
    assert tag in made.source
    assert "lp_clip(lp_c, (ulong)" not in made.source
    assert made.has_arrays == (statement != "both(&x);")
    assert diagnose(made.source) == ()


@pytest.mark.parametrize(
    "statement",
    ["t[1] = *t;", "m[1].v[2] = m->v[1];", "x = sizeof(t);", "f = fract(f, &f);", "v->x = v[1].y;",
     "atomic_inc(&t[x]);", "atomic_inc(t);", 'printf("%d", x);', "event_t e[2]; wait_group_events(2, e);"],
)  # fmt: skip
def test_a_variable_that_is_used_directly_stays_what_it_is(statement):
    source = f"""__kernel void k(__global int *a) {{
    __local int t[7]; struct {{ int v[3]; }} m[2]; float4 v[2]; int x = 1; float f = 1; {statement} }}"""
    text = body(source)
    assert not any(hook in text for hook in ("lp_named", "lp_touch", "lp_private"))


def test_a_parameter_that_is_written_as_an_array_is_a_pointer():
    text = body("""void put(int p[4], __local int q[4]) { q[p[1]] = *p; q = &q[2]; }
    __kernel void k(__global int *a) { int p[4]; __local int q[4]; put(p, q); }""")
    assert (text.count("lp_private"), text.count("lp_touch")) == (2, 1)
    assert "lp_clip" not in text
    assert "q = &q[2];" in text


def test_arrays_within_what_a_pointer_leads_to_are_clipped_unless_a_buffer_holds_them():
    text = body("""typedef struct { int v[3]; } T;
    void put(__local int t[4][5], T *s, __global T *g, int i) { t[i][i] = s->v[i] = g->v[i]; }
    __kernel void k(__global T *g, int i) { __local int t[4][5]; T s; put(t, &s, g, i); }""")
    assert "(t[i][lp_clip(lp_c, (ulong)(i), 5ul)])" in text
    assert "(s->v[lp_clip(lp_c, (ulong)(i), 3ul)])" in text
    assert "(g->v[i])" in text


def test_an_index_that_is_a_lane_is_no_vector():
    """``a[v.x].y`` was taken for a lane of ``v``, and not wrapped: the tag was followed (a corpus kernel died of it)."""
    text = body(
        "typedef struct { int y; } T; __kernel void k(__global T *a, int2 v) { a[v.x].y = 1; }"
    )
    assert "lp_touch(lp_c, 1, (ulong)&(a[v.x].y)" in text


def test_other_kernels_and_unused_helpers_are_dropped():
    source = """float unused(float x) { return x; }
    float used(__global float *p) { return p[1]; }
    __kernel void other(__global float *a) { a[0] = unused(1); }
    __kernel void k(__global float *a) { a[0] = used(a); }"""
    text = body(source)
    assert "unused" not in text
    assert "other" not in text
    assert "used(lp_ctx *lp_c, __global float *p)" in text
    assert "used(lp_c, a)" in text


def test_loops_count_their_turns_and_loops_with_barriers_are_never_left_early():
    source = """__kernel void k(__global float *a, __local float *t, int n) {
        for (int i = 0; i < n; ++i) a[i] = 1;
        do { barrier(CLK_LOCAL_MEM_FENCE); t[0] = 1; } while (n--);
        while (n) ; }"""
    text = body(source)
    assert text.count("if (lp_turn(lp_c, 1)) break;") == 2
    assert text.count("{ lp_count(lp_c, 1);  barrier") == 1


def test_iterations_that_take_long_count_several_times():
    source = """float far(float x) { return tan(x) + sin(x); }
    __kernel void k(__global float *a, int n) {
        for (int i = 0; i < n; ++i) { ALL
            for (int j = 0; j < n; ++j) a[j] = min(a[i], tan(a[j])); }
        while (n--) { a[n] = FAR; } }"""
    source = source.replace("ALL", "a[i] = tan(a[i]); " * 16).replace(
        "FAR", " + ".join(8 * ["far(n)"])
    )
    weights = re.findall(r"lp_turn\(lp_c, (\d+)\)", body(source))
    assert weights == ["6", "1", "4"]  # (16 * 4 + 32) / 16, less than 1, 8 * 2 * 4 / 16


def test_helpers_that_call_each_other_often_are_weighed_at_once():
    helpers = "float f0(float x) { return sin(x); }"
    for depth in range(1, 4):
        calls = f"x = f{depth - 1}(x); " * 40
        helpers += f" float f{depth}(float x) {{ {calls} return x; }}"
    calls = "a[i] = f3(a[i]); " * 40
    began_s = time.process_time()
    text = body(
        f"{helpers} __kernel void k(__global float *a) {{ for (int i = 0; i < 4; i++) {{ {calls} }} }}"
    )
    assert "lp_turn(lp_c, 64)" in text
    assert time.process_time() - began_s < 5.0  # one visit for each call would take minutes


def test_every_way_out_of_the_kernel_hands_in_its_record():
    source = "__kernel void k(__global float *a, int n) { if (n) return; a[0] = 1; if (n > 2) { return; } }"
    assert body(source).count("lp_end(lp_c);") == 3


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("__kernel void k(__global float *a) { a[0] = undeclared_thing; }", "undeclared"),
        ("__kernel void other(__global float *a) { a[0] = 1; }", "has no kernel 'k'"),
        (
            "__constant int T[2] = {1, 2}; __constant int *__constant P[2] = {T, T + 1};\n"
            "__kernel void k(__global int *a) { a[0] = P[0][1]; }",
            "line 2: constant pointers",
        ),
        (
            '__constant char *__constant P[2] = {"a", "b"};\n__kernel void k(__global int *a) { a[0] = P[0][1]; }',
            "line 2: constant pointers",
        ),
        (
            '__constant char *__constant P = "a";\n__kernel void k(__global int *a) { a[0] = (*(&P))[0]; }',
            "line 2: constant pointers",
        ),
        (
            "#pragma OPENCL EXTENSION all : enable\n__kernel void k(__global int *a) { __private int x[2]; int *p = x; atomic_int i; p[1] = atomic_load(&i); }",
            "line 2: a pointer into the generic address space",
        ),
        (
            "#if\n__kernel void k(__global float *a) { a[0] = 1; }\n#endif",
            "a directive is malformed",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_reason(source, why):
    with pytest.raises(UnresolvedError, match=why):
        instrument(source, "k")


def test_macros_of_the_build_options_and_of_a_device_are_expanded():
    source = "#if __OPENCL_VERSION__ >= 110 && defined(cl_khr_fp64)\nint a = N;\n#endif\n#include <nothing.h>\n"
    assert "int a = 12;" in expand_macros(source, "-D N=12 -cl-fast-relaxed-math")


def test_a_macro_bomb_is_refused():
    bomb = "#define A0 1+1+1+1+1+1+1+1\n" + "".join(
        f"#define A{i} " + "+".join([f"A{i - 1}"] * 8) + "\n" for i in range(1, 9)
    )
    with pytest.raises(ExpansionError):
        expand_macros(bomb + "int x = A8;")


def facts_of(source: str):
    (kernel,) = kernels_from_source(source)
    parsed = parse(source)
    return kernel_facts(parsed, parsed.kernels[0], kernel.signature)


def test_facts_name_what_a_size_is_compared_with():
    facts = facts_of(
        """#define TILE 24
        int helper(int n) { return min(n, 77); }
        __kernel void k(__global float *a, int n, int mode, int unused) {
            int i = get_global_id(0);
            if (i < n * 512 && i / 40 < TILE) a[i % 96] = helper(n);
            if (mode == 2) a[0] = 1;
            for (int j = 0; j < 999; ++j) a[j] = 1; }"""
    )
    assert set(facts.thresholds) == {512, 40, 24, 77}
    assert facts.folds == (40, 96)
    assert facts.tested == (2, 24, 40, 77, 512, 999)
    assert facts.scalars == (1, 2)
    assert facts.flags == {2: (2, 3)}
    assert not facts.uses_groups


def test_variables_that_all_depend_on_each_other_are_followed_in_time() -> None:
    """Sorting networks and hashes assign each variable from all others, many times."""
    names = [f"v{number}" for number in range(40)]
    mixing = "".join(f"{one} ^= {other}; " for one in names for other in names)
    declared = "".join(f"int {one} = 1; " for one in names)
    facts = facts_of(
        f"""__kernel void k(__global int *a, int n) {{
            {declared} {mixing} int far = n; int further = far + 1;
            if (v3 > 77) a[0] = v3; if (further > 99) a[1] = 1; }}"""
    )
    assert facts.thresholds == (99,)


@pytest.mark.parametrize(
    "body",
    ["if (clz(n) == 18) a[n] = 1;", "int c = popcount(n); if (c > 9) a[n] = 1;"],
)
def test_a_comparison_with_a_count_of_a_sizes_bits_needs_large_sizes(body):
    facts = facts_of(f"__kernel void k(__global float *a, int n) {{ {body} }}")
    assert 2**30 in facts.thresholds
    harmless = facts_of("__kernel void k(__global int *a, int n) { a[0] = clz(n); }")
    assert harmless.thresholds == ()


@pytest.mark.parametrize(
    ("helpers", "body"),
    [
        ("int bits(int x) { return popcount(x); }", "if (bits(n) > 9) a[n] = 1;"),
        (
            "int one(int x) { return clz(x); } int bits(int x) { int c = one(x); return c; }",
            "int c = bits(n); if (c > 9) a[n] = 1;",
        ),
        ("void write(__global int *a, int c) { if (c > 9) a[c] = 1; }", "write(a, popcount(n));"),
        (
            "void last(__global int *a, int c) { a[c > 9 ? c : 0] = 1; }"
            "void write(__global int *a, int c) { last(a, c); }",
            "int c = clz(n); write(a, c);",
        ),
        (
            "void bits(int x, int *c) { *c = popcount(x); }",
            "int c; bits(n, &c); if (c > 9) a[n] = 1;",
        ),
        ("int bits(int x) { return __builtin_popcount(x); }", "if (bits(n) > 9) a[n] = 1;"),
    ],
)
def test_a_count_of_a_sizes_bits_is_followed_through_helpers(helpers, body):
    facts = facts_of(f"{helpers} __kernel void k(__global int *a, int n) {{ {body} }}")
    assert 2**30 in facts.thresholds


def test_a_helpers_count_that_nothing_is_compared_with_is_harmless():
    facts = facts_of(
        """int bits(int x) { return popcount(x); }
        __kernel void k(__global int *a, int n) {
            int i = get_global_id(0); if (i < n) a[i] = bits(i); }"""
    )
    assert facts.thresholds == ()


@pytest.mark.parametrize(
    ("body", "folds"),
    [
        ("a[i / 256] = 1;", {256}),
        ("a[i >> 16] = 1;", {16, 2**16}),
        ("a[mul_hi((uint)i, 9u)] = 1;", {9, 2**32}),
        ("int j = i; j >>= 20; a[j] = 1;", {20, 2**20}),
        ("a[i & 0x40000] = 1;", {2**18}),
    ],
)
def test_facts_name_what_a_size_is_divided_and_folded_by(body, folds):
    facts = facts_of(f"__kernel void k(__global float *a) {{ int i = get_global_id(0); {body} }}")
    assert set(facts.folds) == folds


@pytest.mark.parametrize(
    "source",
    [
        "__kernel void k(__global float *a) { __local int c; a[c] = 1; }",
        "__kernel void k(__global float *a, __local float *t) { a[0] = t[0]; }",
        "__kernel void k(__global float *a) { barrier(CLK_LOCAL_MEM_FENCE); a[0] = 1; }",
        "void h(__global float *a) { a[get_local_size(0)] = 1; } __kernel void k(__global float *a) { h(a); }",
    ],
    ids=["local variable", "local argument", "barrier", "in a helper"],
)
def test_facts_say_where_the_local_size_can_matter(source):
    assert facts_of(source).uses_groups


def test_facts_name_what_helpers_and_switches_test_and_what_constants_of_the_file_hold():
    facts = facts_of(
        """enum { FWD = 9 };
        __constant int LIMIT = 20000;
        int below(int i, int most) { switch (i) { case 10: return 1; } return i < most; }
        __kernel void k(__global float *a, int dir) {
            if (dir == FWD) a[1] = 1;
            if (below(get_global_id(0), 70000)) a[0] = LIMIT; }"""
    )
    assert set(facts.tested) >= {9, 10}
    assert set(facts.literals) >= {20000, 70000}


def test_a_vector_of_integers_is_one_size():
    assert facts_of("__kernel void k(__global float *a, int4 d) { a[d.x] = 1; }").scalars == (1,)


@pytest.mark.parametrize(
    ("source", "varies"),
    [
        ("#ifdef __GPU__\n#if (\n#endif\n#endif\nint one;", True),
        ("#if __OPENCL_VERSION__ > 120\n#error it does not run there\n#endif\nint one;", False),
        ("#ifdef __IMAGE_SUPPORT__\nint image;\n#endif\nint one;", True),
        ("#if __OPENCL_VERSION__ >= 110\nint one;\n#endif", False),
    ],
)
def test_a_text_that_another_device_reads_otherwise_is_told(source, varies):
    assert varies_by_device(source) is varies


def test_facts_name_neighbours():
    facts = facts_of(
        """__kernel void k(__global int *p, __global int *q, __global int *r, __global float *o) {
            int i = get_global_id(0), l = get_local_id(0);
            for (int j = p[i]; j < p[i + 1]; ++j) o[j] = q[i - 1] + q[i] + r[i] + r[i + 2] + l; }"""
    )
    assert facts.neighbour_pairs == (0, 1)
    assert facts.uses_groups


def test_a_macro_of_the_language_is_left_as_it_is():
    """NAN unfolds to a call with a text: following that pointer gave a kernel that did not compile (found by fuzzing)."""
    source = "__kernel void k(__global float *x) { x[get_global_id(0)] = NAN; }"
    assert "= NAN;" in instrument(source, "k").source


def test_structures_within_structures_take_no_time():
    """Libclang shows each twice: a walk that goes into them visits 2^n (found by fuzzing)."""
    nested = "struct { " * 60 + "int x;" + " } s;" * 60
    assert "lp_touch" in body(f"kernel void k(global int *a) {{ {nested} a[0] = 1; }}")


def test_a_loop_around_a_recursion_ends():
    source = "int f(int x) { return f(x - 1); } kernel void k(global int *a) { for (int i = 0; i < 4; i++) a[i] = f(i); }"
    assert "lp_touch" in body(source)

"""From a text to its kernels: the macros a host would give, and the source that each kernel needs."""

from __future__ import annotations

import pytest

from llmperf_common.failures import Failure, FailureCode
from llmperf_common.records import ArgumentKind
from workers.corpus.read import read_sources
from workers.source import front_end
from workers.source.clang.parse import diagnose
from workers.source.front_end import read_kernels
from workers.source.macro_inference import infer_macros
from workers.source.macro_values import Role, role_of, value_for
from workers.source.read_kernel import ReadKernel


def kernels(source: str, build_options: str = "") -> dict[str, ReadKernel]:
    found = read_kernels(source, build_options)
    assert isinstance(found, tuple), found
    return {one.name: one for one in found}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("kernel void k(global REAL *x) { x[0] = 1; }", "-DREAL=float"),
        ("kernel void k(global REAL4 *x) { REAL4 v = x[0]; v.w = 1; x[0] = v; }", "-DREAL4=float4"),
        ("kernel void k(global POSVEC *p) { p[0].x = p[1].y; }", "-DPOSVEC=float4"),
        ("kernel void k(global THING *p) { p[0].x = p[1].y; }", "-DTHING=float4"),
        ("kernel void k(global uint32_t *x) { x[0] = 1; }", "-Duint32_t=uint"),
        ("kernel void k(global float *x) { x[0] = (FPTYPE)(x[1]) * N; }", "-DFPTYPE=float -DN=16"),
        ("kernel void k(global int *x) { x[0] = x[1] + N * (x[2] + M); }", "-DM=16 -DN=16"),
        ("kernel void k(global int *x) { local int t[WG_SIZE]; x[0] = t[0]; }", "-DWG_SIZE=256"),
        ("kernel void k(global int *x) { local int t[B][B]; x[0] = t[0][0]; }", "-DB=16"),
        ("__attribute__((reqd_work_group_size(WG, 1, 1))) kernel void k(global int *x) { x[0] = 1; }", "-DWG=64"),
        ("INLINE int f(int x) { return x; } kernel void k(global int *x) { x[0] = f(1); }", "-DINLINE="),
        ("kernel void k(GLOBAL_MEM float *x) { x[0] = 1; }", "-DGLOBAL_MEM=__global"),
        ("kernel void k(global int *x) { x[0] = MAX(x[1], x[2]); }", "-DMAX=max"),
        ("#if DIM == 3\n#endif\nkernel void k(global int *x) { x[0] = DIM; }", "-DDIM=3"),
        ("#ifdef SINGLE\n#define T float\n#elif defined(DOUBLE)\n#define T double\n#endif\n"
         "kernel void k(global T *x) { x[0] = 1; }", "-DSINGLE"),
        ("#ifdef DOUBLE\ntypedef double T;\n#elif defined(SINGLE)\ntypedef float T;\n#endif\n"
         "kernel void k(global T *x) { x[0] = 1; }", "-DSINGLE"),
        ("#ifdef A\n#else\n#error choose\n#endif\nkernel void k(global int *x) { x[0] = 1; }", "-DA"),
        ("#ifdef GPU\nkernel void k(global int *x) { x[0] = 1; }\n#endif", "-DGPU"),
    ],
)  # fmt: skip
def test_what_a_host_would_define_is_found(source: str, expected: str):
    found = kernels(source)["k"]
    assert found.build_options == expected
    assert found.signature is not None
    assert found.failure is None
    assert diagnose(found.source, found.build_options) == ()


@pytest.mark.parametrize(
    "source",
    [
        "kernel void k(global int *x) { x[0] = 1; }",
        "kernel void k(global int *x) { x[0] = lower_case_name; }",
        "kernel void k(global int *x) { helper_of_a_header(x); }",
        '#include "missing.h"\nkernel void k(global REAL *x) { x[0] = N; }',
        "kernel void k(global int *x) { x[0] = 1 }",
        "kernel void k(global int *x) { x[0] = UNKNOWN(1, 2); }",
        "kernel void k(global int *x) { ndrange_t r; x[0] = 1; }",
    ],
)
def test_what_does_not_help_is_not_defined(source: str):
    assert kernels(source)["k"].build_options == ""
    assert kernels(source)["k"].source == source


def test_given_options_stay_and_are_not_guessed_again():
    source = "kernel void k(global REAL *x) { x[0] = N; }"
    found = kernels(source, "-DREAL=double -cl-mad-enable")["k"]
    assert found.build_options == "-DREAL=double -cl-mad-enable -DN=16"
    assert found.signature is not None
    assert found.signature.arguments[0].scalar_type == "double"


def test_errors_hidden_by_errors_take_several_rounds():
    source = "\n".join(
        f"#ifdef A{i}\n#define A{i + 1} {'int' if i == 3 else ''}\n#endif" for i in range(4)
    )
    source += "\nkernel void k(global A4 *x) { A4 y = N; x[0] = y; }"
    assert diagnose(source, " ".join(infer_macros(source))) == ()


def test_a_value_follows_its_use():
    assert value_for("LOG_SIZE", "") == "4"
    assert value_for("S", "x << S") == "4"
    assert value_for("TRUE", "") == "1"


FILE = """// of the file
typedef float real; /* caf\u00e9: offsets are bytes */
#define TWO 2
__constant real table[2] = {1, 2};
float unused(float x);
static inline real helper(real x) { return x * table[1]; /* in the helper */ }
float unused(float x) {
    return x; // gone
}

/** The first. */
__kernel void first(__global real *a) {
    a[0] = helper(a[1]); // stays
}

__attribute__((reqd_work_group_size(8, 1, 1)))
__kernel void second(__global real *a) { a[TWO] = 1; }
"""


def test_each_kernel_has_the_text_it_needs():
    found = kernels(FILE)
    head = FILE[: FILE.index("float unused(float x);")]
    helper = FILE[FILE.index("static inline") : FILE.index("float unused(float x) {")]
    first = FILE[FILE.index("/** The first") : FILE.index("__attribute__")]
    assert found["first"].source == head + helper + first
    second = FILE[FILE.index("__attribute__") :]
    assert found["second"].source == head + "/** The first. */\n" + second
    assert found["second"].signature is not None
    assert found["second"].signature.required_local_size == (8, 1, 1)


@pytest.mark.parametrize(
    ("other", "cut"),
    [
        ("int other(int x) { return x; }", True),
        ("int other(int x) {\n#ifdef A\n return 1;\n#else\n return 2;\n#endif\n}", True),
        ("int other(int x) {\n#pragma unroll\n for (int i = 0; i < x; ++i) ; return x; }", True),
        ("int other(int x) {\n#define LEFT 3\n return x; }", False),
        ("#ifdef A\nint other(int x)\n{\n#else\nint other(int y) {\n#endif\n return 1; }", False),
        ("#define MAKE(name) int name(int x) { return x; }\nMAKE(other)", False),
        ("int other(int x) { return x; }\nconstant int size = sizeof(other(1));", False),
    ],
)
def test_only_plain_text_is_cut(other: str, cut: bool):
    source = f"{other}\nkernel void k(global int *x) {{ x[0] = 1; }}\n"
    found = kernels(source)["k"]
    assert (found.source != source) is cut
    assert ("other" not in found.source) is cut


def test_a_helper_of_a_helper_and_a_recursive_one_stay():
    source = (
        "int b(int x) { return x; } int a(int x) { return b(x); } int c(int x) { return c(x); }\n"
        "#define CALL(f) f(1)\nkernel void k(global int *x) { x[0] = CALL(a); }"
    )
    found = kernels(source)["k"].source
    assert "int a" in found
    assert "int b" in found
    assert "int c" not in found


def test_an_error_in_another_kernel_goes_with_it():
    source = "kernel void bad(global int *x) { x[0] = oops; }\nkernel void good(global int *x) { x[0] = 1; }"
    found = kernels(source)
    assert found["good"].source == "kernel void good(global int *x) { x[0] = 1; }"
    assert "oops" in found["bad"].source
    assert "good" not in found["bad"].source


def test_only_the_macros_that_a_kernel_names_are_its_own():
    source = (
        "kernel void a(global REAL *x) { x[0] = 1; }\nkernel void b(global int *x) { x[0] = N; }"
    )
    found = kernels(source)
    assert found["a"].build_options == "-DREAL=float"
    assert found["b"].build_options == "-DN=16"


def test_two_files_with_the_same_kernel_have_one(tmp_path):
    kernel = "kernel void k(global int *x) { x[0] = 1; }\n"
    (tmp_path / "a.cl").write_text(kernel)
    (tmp_path / "b.cl").write_text(f"int unused(int x) {{ return x; }}\n{kernel}")
    assert [one.path for one in read_sources([tmp_path]).kernels] == ["a.cl"]


def test_beyond_a_megabyte_the_whole_text_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(front_end, "MAX_PRUNED_BYTES", 60)
    source = "".join(f"kernel void k{i}(global int *x) {{ x[0] = {i}; }}\n" for i in range(3))
    assert [one.source == source for one in kernels(source).values()] == [False, True, True]


def test_what_cannot_be_launched_has_signature_and_failure():
    (found,) = kernels("kernel void k(read_only image2d_t p, global int *x, int n) {}").values()
    assert found.failure is not None
    assert found.failure.code is FailureCode.UNSUPPORTED
    assert found.signature is not None
    assert [one.kind for one in found.signature.arguments] == [
        ArgumentKind.IMAGE,
        ArgumentKind.GLOBAL_BUFFER,
        ArgumentKind.SCALAR,
    ]


def test_a_text_without_kernels_and_one_without_sense():
    assert read_kernels("int f(void) { return 1; }") == ()
    assert isinstance(read_kernels("kernel )("), Failure)
    assert isinstance(read_kernels("kernel void k(global int *x);"), Failure)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#define TILE TILE_SIZE\n__kernel void k(__global int *x) { x[0] = TILE - 1; }", "-DTILE_SIZE=16"),
        ("#define SIZE N\nint f(int x) { return x % SIZE; } kernel void k(global int *x) { x[0] = f(1); }", "-DN=16"),
        ("INLINE\nint f(int x) { return x; } kernel void k(global int *x) { x[0] = f(1); }", "-DINLINE="),
        ("#define HEAD INLINE int\nHEAD f(int x) { return x; } kernel void k(global int *x) { x[0] = f(1); }", "-DINLINE="),
        ("kernel void k(global int *x) { if (USE_BIAS) x[0] = 2; }", "-DUSE_BIAS=16"),
        ("kernel void k(global int *x) { while (LOOPS) x[0] = 2; }", "-DLOOPS=16"),
        ("float f(float x) { return (FPTYPE)(x); } kernel void k(global float *x) { x[0] = f(1); }", "-DFPTYPE=float"),
        # Read as a type at first; it takes no error away, a number does.
        ("#define MORE(a) (COUNT) + a\nkernel void k(global int *x) { x[MORE(1)] = 1; x[COUNT] = 2; }", "-DCOUNT=16"),
    ],
)  # fmt: skip
def test_a_role_is_read_from_the_code_not_across_lines(source: str, expected: str):
    found = kernels(source)["k"]
    assert found.build_options == expected
    assert diagnose(found.source, found.build_options) == ()


def test_a_wrong_role_is_turned():
    source = "kernel void k(global int *x) { x[0] = (COUNT) x[1] ; x[COUNT] = 2; }".replace(
        "(COUNT) x[1]", "1"
    )
    cast = "#if 0\nint a = (COUNT) b;\n#endif\n"
    assert role_of("COUNT", cast + source, is_type_by_parser=False) is Role.TYPE
    assert kernels(cast + source)["k"].build_options == "-DCOUNT=16"


def test_a_header_that_is_not_there_fails_and_nothing_is_guessed():
    source = '#include "t.h"\nkernel void f(global REAL *x) {}\nkernel void g(global int *x) { x[0] = LEN; }'
    found = kernels(source)
    for one in found.values():
        assert one.failure is not None
        assert one.failure.code is FailureCode.BUILD_ERROR
        assert "t.h" in one.failure.detail
        assert one.build_options == ""
    assert found["f"].signature is None
    assert found["g"].signature is not None

"""A copy of a kernel calls built-in functions and functions of its own text, and nothing else."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from workers.analysis.copy.instrument import instrument
from workers.analysis.copy.outside import CONTEXT_MEMBERS, plain_text, refuse_extensions
from workers.analysis.copy.rewriter import UnresolvedError
from workers.work.counted_copy import counted_copy

KERNEL = "\n__kernel void k(__global int *a) {{ {} }}\n"
OVERLOAD = "int __attribute__((overloadable)) mknodat(int x) { return x; }\n"
PROTOTYPE = "int mknodat(constant char *path, uint mode, ulong dev);\n"
CALL = 'a[0] = mknodat(1) + mknodat("/tmp/x", 0100644u, 0ul);'
REFUSED = {
    "a prototype that an overload hides": (OVERLOAD + PROTOTYPE, CALL),
    "a constructor": ("__attribute__((constructor)) void f(void) { }", "f();"),
    "a constructor in a list": (
        "void __attribute((pure, __constructor__(101))) f(void) { }",
        "f();",
    ),
    "a destructor by digraphs": ("<:<:gnu::destructor:>:> void f(void) { }", "f();"),
    "an inline definition of GNU": (
        "extern inline __attribute__((gnu_inline)) int f(int x) { return x; }",
        "a[0] = f(1);",
    ),
    "a section": ('__constant ulong f __attribute__((section(".init_array"))) = 1;', "a[0] = f;"),
    "a clean-up": (
        "void f(int *x) { }",
        "int __attribute__((cleanup(f))) x = 1; a[0] = x;",
    ),
    "an external variable": ("extern __constant ulong environ;", "a[0] = (int)environ;"),
    "an external variable in a body": ("", "extern __constant ulong environ; a[0] = environ;"),
    "memory of the compiler": ("", "char b[4]; __builtin_memset(b, 65, 1 << 24); a[0] = b[3];"),
    "an end of the process": ("", "__builtin_abort();"),
    "a private address": ("", "int x; a[0] = (int)(ulong)__builtin_assume_aligned(&x, 4);"),
    "a function of the device": ("int __nvvm_x(int x);", "a[0] = __nvvm_x(1);"),
    "a pragma operator": ('_Pragma("weak system")', "a[0] = 1;"),
    "a trigraph that macros join": (
        "#define Q ?\nint __attri?Q/\nbute__((weak)) f(int x) { return x; }",
        "a[0] = f(1);",
    ),
    "a directive after a comment that macros join": (
        "#define E\n#define H #\nint f(int x) { return x; }\n/E* *E/ H undef f",
        "a[0] = f(1);",
    ),
    "a continued line that macros join": (
        "#define B \\\nint f(int x) { return x; } B",
        "a[0] = f(1);",
    ),
    "a pragma by digraphs": ("%: pragma weak system", "a[0] = 1;"),
    "a string that does not end": ('#define S "', "a[0] = sizeof(S);"),
    "an atomic access that libclang does not show": (
        "",
        "__atomic_store_n((int *)0x41414141ul, 7, 0);",
    ),
    "an atomic access of OpenCL": (
        "",
        "__opencl_atomic_store((atomic_int *)0x41414141ul, 7, 0, 1);",
    ),
    "a jump to a computed place": ("", "goto *(&&x + a[0]); x: a[0] = 1;"),
    "a function in place of a hook": (
        "ulong lp_touch(uint site, ulong at, ulong bytes) { return at; }",
        "a[0] = lp_touch(1, 2, 3);",
    ),
    "a block": ("", "int (^f)(int) = ^(int x) { return x; }; a[0] = f(1);"),
    "a directive by digraphs": ("%:define f system\nint f(int x);", "a[0] = f(1);"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_code_that_may_leave_the_copy_is_refused(case: str) -> None:
    before, body = REFUSED[case]
    source = before + KERNEL.format(body)
    for make in (instrument, counted_copy):
        with pytest.raises(UnresolvedError):
            make(source, "k", "")


def test_functions_of_the_copy_have_names_of_their_own() -> None:
    """So no name of the C library is left, whatever the text declares and a compiler inlines."""
    source = "inline int system(int x) { return x; }" + KERNEL.format("a[0] = system(1);")
    for copy in (instrument(source, "k", ""), counted_copy(source, "k", "")):
        name = re.search(r"#define system (\w+)\n", copy.source)
        assert name is not None
        assert name[1].startswith("lp_")


def test_variables_of_the_copy_have_names_of_their_own() -> None:
    source = "__constant ulong environ = 1;" + KERNEL.format("a[0] = (int)environ;")
    assert "#define environ lp_src_environ\n" in instrument(source, "k", "").source


def test_helpers_named_like_lanes_and_attributes_change_nothing() -> None:
    source = (
        "int x(int i) { return i; }\nint packed(int i) { return i; }\n"
        "typedef struct __attribute__((packed)) { char c; int i; } pair;\n"
        + KERNEL.format("int4 v = (int4)(1); a[0] = x(1) + packed(2) + v.x + sizeof(pair);")
    )
    assert "#define" not in instrument(source, "k", "").source.rsplit("int x", maxsplit=1)[1]
    assert "lp_src" not in instrument(source, "k", "").source


@pytest.mark.parametrize("package", ["workers.analysis.copy", "workers.work"])
def test_the_members_that_inserted_text_names_are_known(package: str) -> None:
    hooks = resources.files(package).joinpath("hooks.cl").read_text()
    members = hooks.split("typedef struct {", maxsplit=1)[1].split("} lp_ctx;", maxsplit=1)[0]
    names = re.findall(r"\*?(\w+)(?:\[\w+\])?(?=[,;])", members)
    assert len(names) > 7
    assert set(names) <= CONTEXT_MEMBERS


def test_a_prototype_without_a_body_is_not_in_the_copy() -> None:
    source = OVERLOAD + PROTOTYPE + KERNEL.format("a[0] = mknodat(1);")
    assert "dev" not in instrument(source, "k", "").source.split("int x", maxsplit=1)[1]


def test_an_alias_is_not_in_the_copy() -> None:
    """Without its declaration, a compiler of OpenCL C refuses the call."""
    source = 'int f(int x) __attribute__((alias("system")));' + KERNEL.format("a[0] = f(1);")
    for copy in (instrument(source, "k", ""), counted_copy(source, "k", "")):
        assert "system" not in copy.source


def test_harmless_attributes_and_functions_stay() -> None:
    source = (
        "typedef float four __attribute__((ext_vector_type(4)));\n"
        "static int __attribute__((always_inline, __pure__)) f(int x) { return x; }\n"
        "__attribute__((overloadable)) int g(int x) { return f(x); }\n"
        "int forward(int x);\nint forward(int x) { return x + 1; }\n"
        "__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void k(__global int *a) {\n"
        "  a[0] = f(1) + g(2) + forward(3) + as_int(1.0f) + __builtin_popcount(7) + clamp(1, 2, 3);\n"
        "}\n"
    )
    for make in (instrument, counted_copy):
        assert "lp_src_forward" in make(source, "k", "").source


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("#pragma unroll 4", False),
        ("#pragma OPENCL EXTENSION cl_khr_fp64 : enable", True),
        ("#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable", False),
        ("#pragma redefine_extname f system", False),
        ("#pragma clang attribute push(__attribute__((constructor)), apply_to = function)", False),
    ],
)
def test_unknown_pragmas_are_removed(line: str, is_kept: bool) -> None:
    assert plain_text(f"int x;\n{line}\nint y;") == f"int x;\n{line if is_kept else ''}\nint y;"


@pytest.mark.parametrize(
    "text",
    ["__attribute__ x", "__attribute__((aligned(4", "__attribute__((\naligned(4), weak))"],
)
def test_attributes_without_an_end_are_refused(text: str) -> None:
    with pytest.raises(UnresolvedError):
        refuse_extensions(text)

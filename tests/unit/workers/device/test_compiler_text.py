"""What a device's compiler is handed: no way to a file of this host, however it is written down.

libclang, with this host's files in sight, is the judge: a file that an attack names has an ``#error`` in it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from clang import cindex

from tests.support.collecting import KERNELS
from workers.device.opencl.build_options import refused_option
from workers.device.opencl.compiler_text import compiler_text

KERNEL = "\nkernel void k(global int *x) { x[0] = 1; }\n"

WAYS = {
    "far_away": '#ifndef NEVER\n#include "../../../../../../../../../../{path}"\n#endif',
    "macro": '#define P "{path}"\n#include P',
    "digraph": '%:include "{path}"',
    "trigraph": '??=include "{path}"',
    "joined_lines": '#inc\\\nlude "{path}"',
    "joined_after_a_blank": '#inc\\ \nlude "{path}"',
    "joined_by_a_trigraph": '#inc??/\nlude "{path}"',
    "joined_twice": '#inc\\??/\n\nlude "{path}"',
    "byte_order_mark": '\ufeff#include "{path}"',
    "old_line_end": 'int a;\r#include "{path}"',
    "no_byte": '#\0include "{path}"',
    "odd_blanks": '\f#\vinclude\u00a0"{path}"',
    "comments_between": '/*\n*/#/*x*/include/*y*/"{path}"',
    "behind_an_open_text": '#define A \\" /*\n#include "{path}"\n#define B */',
    "behind_a_message": '#error it is /*\n#include "{path}"\n#define B */',
    "behind_a_name": '#include <a/*>\n#include "{path}"\n#define B */',
    "in_a_comment_of_trigraphs": '// what is this ??/\n#include "{path}"',
    "next": '#include_next "{path}"',
    "import": '#import "{path}"',
    "question": '#if __has_include("{path}")\n#error SEEN\n#endif',
    "made_up_question": '#define C(a, b) a##b\n#if C(__has_, include)("{path}")\n#error SEEN\n#endif',
    "renamed_question": '#define Q __has_include\n#if Q("{path}")\n#error SEEN\n#endif',
}

NO_WAY_FOR_CLANG = ("joined_twice", "behind_a_name", "no_byte")
"""Other compilers may read them otherwise."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.h"
    path.write_text("#error SEEN\n")
    return path


def complaints(text: str, *options: str) -> list[str]:
    name = "k.cl"
    arguments = ["-x", "cl", "-cl-std=CL2.0", "-cl-no-stdinc", "-nostdinc", "-ferror-limit=0"]
    unit = cindex.Index.create().parse(
        name, args=[*arguments, *options], unsaved_files=[(name, text.replace("\0", " "))]
    )
    return [one.spelling for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Warning]


def is_seen(text: str, *options: str) -> bool:
    return any("SEEN" in one for one in complaints(text, *options))


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_a_file_is_left(secret: Path, way: str) -> None:
    text = WAYS[way].format(path=secret) + KERNEL
    assert is_seen(text) or is_seen(text, "-fno-trigraphs") or way in NO_WAY_FOR_CLANG
    safe = compiler_text(text)
    assert not is_seen(safe)
    assert not is_seen(safe, "-fno-trigraphs")
    assert "\0" not in safe


@pytest.mark.parametrize("line", ['#embed "/etc/passwd"', '#__include_macros "x.h"', "#usefile x"])
def test_what_compilers_may_know_one_day_is_an_error(line: str) -> None:
    assert compiler_text(f"int a;\n{line}\nint b;").split("\n")[1].startswith("#error ")


@pytest.mark.parametrize(
    "pragma",
    [
        '#pragma GCC dependency "{path}"',
        '#pragma GCC /*\n*/ dependency "{path}"',
        '_Pragma("GCC dependency \\"{path}\\"")',
        '#define P "GCC dependency \\"{path}\\""\n_Pragma(P)',
    ],
)
def test_pragmas_that_read_are_errors(secret: Path, pragma: str) -> None:
    absent = pragma.format(path=secret.with_name("absent.h")) + KERNEL
    assert any("not found" in one for one in complaints(absent))
    assert not any("not found" in one for one in complaints(compiler_text(absent)))


@pytest.mark.parametrize(
    "pragma",
    [
        "#pragma clang __debug crash",
        "#pragma clang __de\\\nbug /* x */ crash",
        "%:pragma clang/* x */__debug crash",
        '_Pragma("clang __debug crash")',
        '_Pragma("clang/* x */__debug crash")',
        "#define S(x) #x\n#define P(x) _Pragma(S(x))\nP(clang __debug crash)",
    ],
)
def test_pragmas_that_crash_a_compiler_are_errors(pragma: str) -> None:
    assert complaints(compiler_text(pragma + KERNEL)) != []


@pytest.mark.parametrize(
    "line",
    [
        '#define __debug(x)\n#define UNROLL _Pragma("unroll")\n',
        '#define UNROLL _Pragma("unroll") // clang has a pragma __debug\n',
        '#define UNROLL _Pragma("unroll")\nconstant int __debug = 1;\n',
    ],
)
def test_a_name_of_a_refused_pragma_refuses_no_other_pragma(line: str) -> None:
    loop = "{ UNROLL for (int i = 0; i < 4; i++) x[i] = i; }"
    kernel = f"{line}kernel void k(global int *x) {loop}"
    assert complaints(kernel) == []
    assert complaints(compiler_text(kernel)) == []


ASSEMBLY = {
    "plain": '__asm__(".include \\"x\\"");',
    "volatile": '__asm volatile (".incbin \\"x\\"" ::: "memory");',
    "made_up": 'C(__as, m__)(".include \\"x\\"");',
    "renamed": 'ASSEMBLER(".include \\"x\\"");',
    "defined_anew": '\n#undef __asm__\n__asm__("nop");',
    "defined_anew_behind_a_comment": '\n#undef /* x */ __asm__\n__asm__("nop");',
}


@pytest.mark.parametrize("way", ASSEMBLY)
@pytest.mark.parametrize("where", ["in a kernel", "in the file"])
def test_inline_assembly_is_refused(way: str, where: str) -> None:
    before = "#define C(a, b) a##b\n#define ASSEMBLER __asm__\n"
    code = f"kernel void k(global int *x) {{ {ASSEMBLY[way]} }}"
    if where == "in the file":
        code = ASSEMBLY[way].replace("volatile", "") + KERNEL
    errors = complaints(compiler_text(before + code))
    assert any("expected" in one for one in errors), errors


def test_macros_of_the_options_open_no_way() -> None:
    code = 'kernel void k(global int *x) { A(".include \\"x\\""); }'
    assert complaints(code, "-DA=__asm__") == []
    assert complaints(compiler_text(code, "-DA=__asm__"), "-DA=__asm__") != []


@pytest.mark.parametrize("seed", range(8))
def test_random_pieces_open_no_way(tmp_path: Path, secret: Path, seed: int) -> None:
    path = str(secret)
    pieces = [
        "#", "%:", "??=", "include", "inc", "lude", "import", f'"{path}"', f"<{path}>", "<a/*>", '"b/*"', "/*", "*/", "//",
        "\\", "\\ ", "??/", "\n", "\n", "\n", "\r", "\r\n", '"', "'", " ", "\t", "#error x", "#error don't /*", "#if 0\n",
        "#if 1\n", "#endif\n", "\ufeff", "\0", "\f", f'#define P "{path}"\n', "#include P", f'#include "{path}"', "1'0",
        'R"(', ')"', "#pragma x /*", "#define A /*", '#line 1 "a/*"\n', "\u00a0", "\u2028", f'__has_include("{path}")',
    ]  # fmt: skip
    draw = random.Random(seed)
    num_live = 0
    for _ in range(150):
        text = "".join(draw.choices(pieces, k=draw.randint(2, 14))) + f'\n#include "{path}"\n'
        num_live += is_seen(text)
        safe = compiler_text(text)
        for options in ((), ("-fno-trigraphs",)):
            assert not is_seen(safe, *options), repr(text)
    assert num_live > 20


@pytest.mark.parametrize(
    "text",
    [
        KERNEL,
        "#define N 4\n#ifdef A\n#pragma unroll\n#endif\nint x; // a comment\n",
        '# 12 "k.cl"\n#line 3\n#\n#if 0\n#error don\'t\n#endif\n',
        'constant char t[] = "a \\\nb";\r\n',
    ],
)
def test_what_names_nothing_of_that_kind_stays_as_it_is(text: str) -> None:
    assert compiler_text(text) is text


def test_our_own_kernels_stay_as_they_are() -> None:
    for file in KERNELS.glob("*.cl"):
        source = file.read_text()
        assert compiler_text(source) is source, file


def test_other_branches_do_not_matter_and_lines_keep_their_numbers() -> None:
    text = (
        "#ifdef __cplusplus\n#include <vector>\n#endif /* a\n\n comment */\n"
        "#define PASTE(a, b) a##b /* import\n */\n"
        '#ifdef __NVCC__\n__asm__("nop");\n#endif\n'
        "kernel void k(global int *x) { PASTE(x, )[0] = 1; }\n\nnonsense"
    )
    safe = compiler_text(text)
    assert safe.rpartition("#line 1\n")[2].split("\n")[12] == "nonsense"
    assert all("unknown type name" in one or "expected" in one for one in complaints(safe))
    assert len(complaints(safe)) == 2


@pytest.mark.parametrize(
    "options",
    [
        "-I/etc", "-I /etc", "-include /etc/passwd", "-imacros x", "@/etc/passwd", "-Xclang -include", "-x c", "-s /etc/x",
        "-g", "-DX='1 -I/etc'", "-D 'X=1\t-I/etc'", "-DX='1\n#include'", "-DX='\"'", "-DX=1\\ -I/etc", "-D", "-D1=2",
        "-cl-std=CL2.0=/etc", "--sysroot=/", "-isystem /", "-fplugin=/x.so", "-cl-", "x.h", "-DA=\"'\"",
    ],
)  # fmt: skip
def test_other_build_options_are_refused(options: str) -> None:
    assert refused_option(options) is not None


@pytest.mark.parametrize(
    "options",
    [
        "", "-DREAL=float -DN=16", "-D N=4 -U M", "-cl-std=CL1.2 -cl-mad-enable -w", "-DF(x,y)=((x)+(y)*2)",
        "-cl-fast-relaxed-math -cl-nv-maxrregcount=32", "-DT=(float4)(1.5f,-2,3,4)",
    ],
)  # fmt: skip
def test_known_build_options_pass(options: str) -> None:
    assert refused_option(options) is None

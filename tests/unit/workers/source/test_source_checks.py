"""What no parser may see, and what is not mistaken for it."""

from pathlib import Path

import pytest

from llmperf_common.failures import FailureCode
from workers.analysis.copy.preprocess import expand_macros
from workers.device.opencl.build_options import parser_options
from workers.source.clang.parse import diagnose, parse
from workers.source.front_end import read_kernels
from workers.source.source_checks import refused

KERNEL = "\nkernel void k(global int *x) { x[0] = 1; }"


@pytest.mark.parametrize(
    "include",
    [
        '#include "/dev/zero"',
        "#include </etc/passwd>",
        '  # include   "/proc/self/environ"',
        '#/* hidden */include "/dev/stdin"',
        '#inc\\\nlude "/dev/zero"',
        '#inc\\\r\nlude "/dev/zero"\r',
        '%:include "/dev/zero"',
        '#include_next "/dev/zero"',
        '#import "/dev/zero"',
    ],
)
def test_files_of_this_machine_are_not_read(include: str):
    found = read_kernels(include + KERNEL)
    assert not isinstance(found, tuple)
    assert found.code is FailureCode.BUILD_ERROR
    assert "files of this machine" in found.detail


@pytest.mark.parametrize(
    "text",
    [
        '#include "types.h"',
        '#include "../common/types.h"',
        '// #include "/dev/zero"',
        '/*\n#include "/dev/zero"\n*/',
        '__constant char t[] = "#include \\"/dev/zero\\"";',
        "int a = 4 /2; // include",
    ],
)
def test_other_texts_pass(text: str):
    assert refused(text + KERNEL) is None


def test_half_a_character_is_no_text():
    found = read_kernels("// \ud800" + KERNEL)
    assert not isinstance(found, tuple)
    assert found.code is FailureCode.BUILD_ERROR
    assert "not UTF-8" in found.detail
    assert "at character 3" in found.detail


@pytest.mark.parametrize("parameter", ["global enum E *x", "enum E x"])
def test_a_type_without_size_cannot_be_filled(parameter: str):
    found = read_kernels(f"enum E; kernel void k({parameter}, global int *y) {{ y[0] = 1; }}")
    assert isinstance(found, tuple)
    assert found[0].failure is not None
    assert found[0].failure.code is FailureCode.UNSUPPORTED


def test_a_sum_of_thousands_is_refused_not_cut_off():
    """Beyond the limit on depth; it must not come as an error of ctypes, nor lose the rest of the tree."""
    terms = " + ".join(["x[1]"] * 2500)
    found = read_kernels(f"kernel void k(global int *x) {{ x[0] = {terms}; }}")
    assert not isinstance(found, tuple)
    assert found.code is FailureCode.UNSUPPORTED
    assert "nested too deeply" in found.detail


@pytest.mark.parametrize(
    "include",
    [
        '"mine.h"',
        '"../../{folder}/mine.h"',
        '"../../../../../../../../{folder}/mine.h"',
        '"/{folder}/mine.h"',
        "MACRO",
        "<stdio.h>",
        "<linux/version.h>",
    ],
)
def test_a_result_does_not_depend_on_what_lies_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str
):
    (tmp_path / "mine.h").write_text("#define MINE 1\n#define ALSO 2")
    folder = str(tmp_path).lstrip("/")
    text = f'#define MACRO "/{folder}/mine.h"\n#include {include.format(folder=folder)}\nint a = MINE;\n'
    monkeypatch.chdir(tmp_path)
    errors = diagnose(text + KERNEL)
    assert errors[0].startswith("2: ")
    assert errors[0].endswith("file not found")
    assert errors[1:] == ("3: use of undeclared identifier 'MINE'",)
    assert parse(text).missing_files
    assert "MINE" in expand_macros(text)


def test_whether_a_file_is_there_cannot_be_asked():
    asks = '#if __has_include("/etc/passwd") || __has_include(<stdio.h>)\n#error seen\n#endif'
    assert diagnose(asks + KERNEL) == ()


def test_a_folder_that_the_options_name_is_not_seen(tmp_path: Path):
    (tmp_path / "mine.h").write_text("#define MINE 1\n")
    text = f'#include "mine.h"\nint a = MINE;{KERNEL}'
    assert diagnose(text, f"-I{tmp_path}")[0] == "1: 'mine.h' file not found"
    assert diagnose(text, f"-include {tmp_path / 'mine.h'}")[0] == "1: 'mine.h' file not found"


def test_options_with_an_open_quote_are_words():
    assert parser_options("-DA='1 -DB=2") == ("-DA='1", "-DB=2")


@pytest.mark.parametrize(
    "pragma",
    [
        "#pragma clang __debug overflow_stack",
        "#pragma clang __de\\\nbug /* x */ overflow_stack",
        '_Pragma("clang __debug overflow_stack")',
        "#define S(x) #x\n#define P(x) _Pragma(S(x))\nP(clang __debug overflow_stack)",
        "#define S(x) #x\n#define T(x) S(x)\n#define C(a, b) a##b\n_Pragma(T(clang C(__de,bug) overflow_stack))",
        "#pragma clang __debug crash",
        "#pragma clang __debug parser_crash",
        "#pragma clang __debug llvm_fatal_error",
    ],
)
def test_the_parser_obeys_no_pragma_that_debugs_it(pragma: str):
    assert diagnose(pragma + KERNEL) == ()

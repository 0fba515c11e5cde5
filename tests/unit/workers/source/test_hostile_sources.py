"""Sources of a few hundred KB whose reading once took minutes or gigabytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from llmperf_common.failures import Failure, FailureCode
from llmperf_common.records import Access, Signature
from workers.corpus.one_source import files_of_path, read
from workers.source import front_end, macro_inference
from workers.source.clang import access
from workers.source.front_end import read_kernels
from workers.source.macro_values import Role, role_of
from workers.source.parse_child import answer
from workers.source.parse_memory import most_bytes
from workers.source.parse_pool import parse_sources
from workers.source.preprocessor_guards import branches_by_line
from workers.source.read_kernel import ReadKernel
from workers.source.signature import MAX_ARGUMENTS

KERNEL = "kernel void k(global struct t *p) { p[0].i = 1; }\n"


def one_kernel(source: str) -> ReadKernel:
    found = read_kernels(source)
    assert isinstance(found, tuple)
    return found[0]


def signature(source: str) -> Signature:
    found = one_kernel(source).signature
    assert found is not None
    return found


def nested(innermost: str, num_levels: int, width: int = 8) -> str:
    """A structure of ``width`` structures of ..., with ``width ** num_levels`` leaves in all."""
    text = f"struct s0 {{ {innermost} }};\n"
    for level in range(1, num_levels + 1):
        members = " ".join(f"struct s{level - 1} m{i};" for i in range(width))
        text += f"struct s{level} {{ {members} }};\n"
    return f"{text}struct t {{ int i; struct s{num_levels} m; }};\n{KERNEL}"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("innermost", ["int a; float b;", "float a; float b;"])
def test_structures_with_millions_of_leaves_are_not_walked(innermost: str):
    assert signature(nested(innermost, 9)).arguments[0].leaves == ()


def test_nested_structures_keep_their_leaves():
    (argument,) = signature(nested("int a; float b;", 2, width=2)).arguments
    found = [(one.offset_bytes, one.scalar_type, one.count) for one in argument.leaves]
    assert found[:3] == [(0, "int", 2), (8, "float", 1), (12, "int", 1)]
    assert found[-1] == (32, "float", 1)
    assert len(found) == 8
    arrays = "struct t { int i; struct { float a[3]; int b; } m[2]; };\n"
    (argument,) = signature(arrays + KERNEL).arguments
    found = [(one.offset_bytes, one.scalar_type, one.count) for one in argument.leaves]
    assert found == [
        (0, "int", 1), (4, "float", 3), (16, "int", 1), (20, "float", 3), (32, "int", 1),
    ]  # fmt: skip


@pytest.mark.timeout(10)
def test_a_file_of_many_kernels_is_cut_in_linear_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(front_end, "MAX_PRUNED_BYTES", 0)  # each further parse would take 2 ms
    body = "/* a comment that makes the file long */ x[0] = 1;" * 4
    text = "".join(f"kernel void k{i}(global int *x) {{ {body} }}\n" for i in range(1_000))
    found = read_kernels(text)
    assert isinstance(found, tuple)
    assert len(found) == 1_000


def test_open_branches_need_linear_memory():
    lines = branches_by_line("#if A\n" * 20_000 + "x\n" + "#endif\n" * 20_000)
    assert max(map(len, lines)) == 64
    assert [len(lines[number]) for number in (0, 9, 20_000, 39_990, 40_000)] == [1, 10, 64, 10, 0]
    chain = branches_by_line("#if A\n" + "#elif B\n" * 20_000)
    assert len(chain[-2][0].before) == 64


def test_errors_that_kernels_share_are_sent_once():
    text = "".join(f"kernel void k{i}(global int *x) {{ x[0] = 1 +; }}\n" for i in range(60))
    sent = answer(text, "")
    assert len(json.loads(sent)["errors"]) == 60
    assert len(sent) < 250_000
    (found,) = parse_sources([text])
    assert found == read_kernels(text)
    assert isinstance(found, tuple)
    assert len(found[7].errors) == 60
    assert found[7].errors[7].startswith("8: ")


@pytest.mark.timeout(10)
def test_thousands_of_errors_get_their_lines_in_linear_time(tmp_path: Path):
    (tmp_path / "t.h").write_text("int h;\n")
    path = tmp_path / "k.cl"
    wrong = "x();\n" * 8_000
    path.write_text(f'#include "t.h"\nkernel void k(global int *x) {{\n{wrong}}}\n')
    (kernel,) = read(path, files_of_path(path))
    assert len(kernel.errors) == 8_000
    assert [one.partition(": ")[0] for one in (kernel.errors[0], kernel.errors[-1])] == [
        "3",
        "8002",
    ]


@pytest.mark.timeout(10)
def test_a_kernel_with_very_many_arguments_is_unsupported():
    def with_arguments(number: int) -> ReadKernel:
        names = ", ".join(f"int a{i}" for i in range(number))
        uses = " ".join(f"if (get_global_id(0) < a{i}) return;" for i in range(number))
        return one_kernel(f"kernel void k({names}) {{ {uses} }}\n")

    few, many = with_arguments(100), with_arguments(4_000)
    assert few.failure is None
    assert many.signature is None
    assert many.failure is not None
    assert many.failure.code is FailureCode.UNSUPPORTED
    assert many.failure.detail == f"it has 4000 arguments, more than {MAX_ARGUMENTS}"


def test_the_pointers_of_a_helper_with_very_many_parameters_count_as_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
):
    text = (
        "int f(global int *p, int n) { return p[n]; }\n"
        "kernel void k(global int *x, global int *y) { x[0] = f(y, 1); }\n"
    )
    assert signature(text).arguments[1].access is Access.READ
    monkeypatch.setattr(access, "_MAX_PARAMETERS", 1)
    assert signature(text).arguments[1].access is Access.READ_WRITE


def macro_bomb(num_levels: int) -> str:
    """A kernel whose line expands to ``4 ** num_levels`` additions."""
    levels = (f"#define A{j} A{j + 1} A{j + 1} A{j + 1} A{j + 1}\n" for j in range(num_levels))
    text = "".join(levels) + f"#define A{num_levels} +1\n"
    return text + "kernel void k(global int *x) { x[0] = 0 A0; }\n"


@pytest.mark.timeout(60)
def test_a_macro_that_expands_to_thousands_of_millions_of_tokens_is_refused_early():
    sound = "kernel void k(global int *x) { x[0] = 1; }\n"
    found = parse_sources([sound, macro_bomb(16), sound], num_children=1)
    assert found[0] == found[2] == read_kernels(sound)
    assert isinstance(found[1], Failure)
    assert found[1].code is FailureCode.COMPILER_CRASH
    assert found[1].detail.startswith("the parser needs more than 384 MiB for this source of 4")
    assert "a macro may expand to too much text" in found[1].detail


def test_a_source_may_need_more_memory_the_longer_it_is(tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text(
        "import json, sys, time\n"
        "from workers.source.parse_memory import MemoryWatch\n"
        "watch = MemoryWatch()\n"
        "watch.start()\n"
        "for line in sys.stdin:\n"
        "    source = json.loads(line)['source']\n"
        "    watch.allow(source)\n"
        "    some = None if source == 'a' else bytearray(b'x') * (400 * 2**20)\n"
        "    time.sleep(0.5)\n"
        "    print(json.dumps({'kernels': []}), flush=True)\n"
    )
    command = (sys.executable, str(child))
    sources = ["b" * 200_000, "a", "b", "a"]  # the first leaves its memory in use
    found = parse_sources(sources, num_children=1, command=command)
    assert isinstance(found[2], Failure)
    assert "more than 384 MiB for this source of 1 character" in found[2].detail
    assert found[0] == found[1] == found[3] == ()
    assert most_bytes("b" * 200_000) > (400 + 100) * 2**20


@pytest.mark.parametrize("name", ["UNKNOWN_", "unknown_", "UNKNOWN_T_"])
def test_thousands_of_unknown_names_do_not_each_examine_the_source(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    examined: list[str] = []

    def counted(one: str, code: str, *, is_type_by_parser: bool) -> Role:
        examined.append(one)
        return role_of(one, code, is_type_by_parser=is_type_by_parser)

    monkeypatch.setattr(macro_inference, "role_of", counted)
    terms = " + ".join(f"{name}{j}" for j in range(3_000))
    source = f"kernel void k(global int *x) {{ x[0] = {terms}; }}\n"
    found = one_kernel(source)
    assert found.signature is not None
    assert found.invented == ()
    assert len(found.errors) == 3_000
    assert 64 < len(examined) < 400
    assert len(examined) * len(source) < macro_inference.MAX_EXAMINED_CHARS

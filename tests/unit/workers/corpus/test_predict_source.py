"""Which kernel ``predict`` is asked about: the same one that a corpus has of the file."""

import os
from pathlib import Path

import pytest

from llmperf.prediction.sources import SourceReader
from trainer.errors import BadInput
from workers.corpus.one_source import file_of_text, files_of_path, read
from workers.corpus.read import read_sources

KERNELS = Path(__file__).parents[4] / "kernels"
USES_HEADER = '#include "t.h"\n__kernel void k(__global REAL *x) { x[0] = N; }\n'


def test_headers_are_put_in_as_in_a_corpus(tmp_path: Path):
    (tmp_path / "t.h").write_text("#define REAL float\n")
    path = tmp_path / "k.cl"
    path.write_text(USES_HEADER)
    chosen = SourceReader().kernel(path, None).kernel
    (known,) = read_sources([path]).kernels
    assert chosen == known
    assert chosen.signature is not None
    assert known.failure is None
    assert chosen.signature.arguments[0].type_name == "float*"
    assert chosen.build_options == "-DN=16"


def test_a_header_that_is_not_there_is_named(tmp_path: Path):
    path = tmp_path / "k.cl"
    path.write_text(USES_HEADER)
    with pytest.raises(BadInput, match=r"k\.cl: kernel k: it includes t\.h: not found"):
        SourceReader().kernel(path, None)


def test_why_a_file_cannot_be_read_is_told_also_where_a_kernel_is_named(tmp_path: Path):
    path = tmp_path / "a.cl"
    path.write_text('#include "/etc/hostname"\nkernel void k(global int *x) { x[0] = 1; }')
    with pytest.raises(BadInput) as unnamed:
        SourceReader().kernel(path, None)
    with pytest.raises(BadInput, match="hostname") as named:
        SourceReader().kernel(path, "k")
    assert str(named.value).partition(": ")[2] in str(unnamed.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"// caf\xe9\n", "not UTF-8"),
        (b"", "empty file"),
        (b"int f(int x) { return x; }", "no __kernel function"),
        (b"kernel void a() {} kernel void b() {}", "2 kernels: choose one with --kernel: a, b"),
    ],
)
def test_a_file_that_cannot_be_is_told(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "k.cl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        SourceReader().kernel(path, None)
    with pytest.raises(BadInput, match=r"Is a directory.*name a readable OpenCL source file"):
        SourceReader().kernel(tmp_path, None)


def test_what_is_no_regular_file_is_said(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.cl")
    for path, what in (("pipe.cl", "is not a regular file"), ("none.cl", "No such file")):
        with pytest.raises(BadInput, match=f"{path}: {what}: name a readable OpenCL source file"):
            SourceReader().kernel(tmp_path / path, None)
    for empty in ("", " "):
        with pytest.raises(BadInput, match="the source is empty"):
            SourceReader().kernel(empty, None)


GOOD = "__kernel void k(__global float *x) {{ int i = get_global_id(0); {} }}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.format("if (i) {{ x[i] = 1;"), r"source text:\d: error: expected '}'"),
        ("\n" + GOOD.format("x[i] = 1"), r"source text:2: error: expected ';' after expression"),
        (GOOD.format("x[i] = missing;"), "undeclared identifier 'missing'"),
        (GOOD.format("x[i] = missing(1.0f);"), "'missing'"),
        ("float f(float v) { return v + w; }\n" + GOOD.format("x[i] = f(1);"), "identifier 'w'"),
        ("float f(float v);\nstruct s { float v }\n" + GOOD.format("x[i] = 1;"), "2: error: "),
    ],
)
def test_a_source_that_does_not_compile_is_refused(text: str, message: str):
    with pytest.raises(BadInput, match=message) as caught:
        SourceReader().kernel(text, "k")
    assert str(caught.value).endswith("kernel k does not compile: correct the source") or (
        "could not make sense" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            '#include "t.h"\n\n__kernel void k(__global T *x)\n{ x[0] = missing; }\n',
            r"k\.cl:4: error",
        ),
        (
            'float f(float v)\n{ return v + missing; }\n#include "t.h"\n'
            "__kernel void k(__global T *x) { x[0] = f(1); }\n",
            r"k\.cl:2: error",
        ),
        (
            '#include "t.h"\nT f(T v) { return v + missing; }\n#include "u.h"\n'
            "__kernel void k(__global T *x) { x[0] = f(1); }\n",
            r"k\.cl: line 4 of the text with its headers inserted: error",
        ),
    ],
)
def test_an_error_has_the_line_of_the_file_itself(tmp_path: Path, text: str, place: str):
    (tmp_path / "t.h").write_text("// one\n// two\ntypedef float T;")
    (tmp_path / "u.h").write_text("// one\n// two\n")
    (tmp_path / "k.cl").write_text(text)
    with pytest.raises(BadInput, match=place):
        SourceReader().kernel(tmp_path / "k.cl", None)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.format("x[i] = SCALE * (REAL)i;"),  # macros of the host program
        "__kernel void k(__global FPTYPE *x) { __local FPTYPE t[WG_SIZE]; x[0] = t[0]; }\n",
        "KERNEL void k(GLOBAL float *x) { x[0] = MIN(x[0], EPS); }\n__kernel void other() {}\n",
        "float f(float v) { return nothing; }\n" + GOOD.format("x[i] = 1;"),  # is not called
        "__kernel void broken(__global int *y) { y[0] = nothing; }\n" + GOOD.format("x[i] = 1;"),
    ],
)
def test_what_can_be_inferred_or_is_not_needed_is_no_error(text: str):
    assert SourceReader().kernel(text, "k").errors == ()


def test_names_that_a_vendor_s_compiler_may_know_are_only_said():
    found = SourceReader().kernel(GOOD.format("x[i] = sub_group_reduce_add(x[i]);"), "k")
    assert found.errors == ()
    assert "sub_group_reduce_add" in found.unknown[0]


def test_a_kernel_that_ran_is_not_refused():
    text = GOOD.format("x[i] = extension_of_its_device(1);")
    with pytest.raises(BadInput) as caught:
        SourceReader().kernel(text, None)
    assert "extension_of_its_device" in str(caught.value)
    (known,) = read(Path("x"), (file_of_text(text, "x"),))
    assert SourceReader().kernel(text, None, {known.kernel.kernel_id}).errors


def test_every_kernel_of_ours_is_taken():
    found = read(KERNELS, files_of_path(KERNELS))
    assert len(found) >= 78
    for one in found:
        assert (one.errors, one.unknown, one.kernel.failure) == ((), (), None), one.kernel.name

"""Which kernel ``predict`` is asked about: the same one that a corpus has of the file."""

from pathlib import Path

import pytest

from llmperf.prediction.sources import SourceReader
from trainer.errors import BadInput
from workers.corpus import read_sources

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

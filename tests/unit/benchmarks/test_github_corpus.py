"""The instrumentation of the paper's corpus is taken out, and nothing else."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.data import github_corpus
from benchmarks.data.github_corpus import unhook

HEAD = (
    '//{"a": 0}\nint hook(int argId, int id) {\n\tprintf("%d,%d\\n", argId, id);\n\treturn id;\n}\n'
)
KERNEL = "__kernel void k(__global int *a) { a[get_global_id(0)] = (1); }"


@pytest.mark.parametrize(
    ("instrumented", "plain"),
    [
        ("a[hook(0, f(i, (2)))] = (b[1]);", "a[f(i, (2))] = (b[1]);"),
        ("a[hook(0, b[hook(1, i)])]", "a[b[i]]"),
        ("a[b[ihook(2, i)] = 1;", "a[b[i]] = 1;"),
        ("x = my_function(i);", "x = my_function(i);"),
    ],
)
def test_hooks_are_taken_out(instrumented: str, plain: str) -> None:
    assert unhook(HEAD + instrumented) == plain


@pytest.mark.parametrize("damaged", ["a[hook(0, i) = 1;", "a[hook (1)] = hook(;"])
def test_what_cannot_be_mended_is_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unhook(damaged)


def test_the_tarball_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = HEAD + KERNEL.replace("get_global_id(0)", "hook(0, get_global_id(0))")
    (tmp_path / "1.cl").write_text(hooked, encoding="utf-8")
    (tmp_path / "2.cl").write_text("a[hook(0, i) = 1;", encoding="utf-8")
    (tmp_path / "3.cl").write_bytes(b"\xff\xfe")
    out = tmp_path / "github.tar.xz"
    monkeypatch.setattr(sys, "argv", ["github_corpus", str(tmp_path), str(out)])
    assert github_corpus.main() == 0
    with tarfile.open(out) as archive:
        assert archive.getnames() == ["github/1.cl"]
        member = archive.extractfile("github/1.cl")
        assert member is not None
        assert member.read().decode() == KERNEL
    monkeypatch.setattr(sys, "argv", ["github_corpus", str(tmp_path / "none"), str(out)])
    assert github_corpus.main() == 3

"""Headers of a source tree become part of the kernels that include them, and nothing else is looked at."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from workers.corpus import read_sources
from workers.corpus_files import MAX_INCLUDED_BYTES, SourceFile
from workers.corpus_includes import with_includes
from workers.corpus_sources import find_sources

TREE = {
    "app/main.h": "#define fp float\n#define THREADS 64\n",
    "app/kernel/k.cl": '#include "./main.h"\n__kernel void k(__global fp *x) { x[0] = THREADS; }\n',
    "app/kernel/own.h": "int own(int x) { return x; }\n",
    "app/kernel/two.cl": '#  include "own.h"  // its own\n#include "k.cl"\n#include "missing.h"\n'
    "__kernel void two(__global int *x) { x[0] = own(1); }\n",
}
EXPANDED = TREE["app/main.h"] + "\n__kernel void k(__global fp *x) { x[0] = THREADS; }\n"


def folder(where: Path) -> Path:
    for name, text in TREE.items():
        (where / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (where / "s" / name).write_text(text)
    return where / "s"


def tar(where: Path) -> Path:
    with tarfile.open(where / "s.tar.gz", "w:gz") as archive:
        for name, text in TREE.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return where / "s.tar.gz"


def zipped(where: Path) -> Path:
    with zipfile.ZipFile(where / "s.zip", "w") as archive:
        for name, text in TREE.items():
            archive.writestr(name, text)
    return where / "s.zip"


def git(where: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs the git command")
    root = folder(where)
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run(("git", *who, "-C", str(root), *words), check=True, capture_output=True)
    return root / ".git"


@pytest.mark.parametrize("make", [folder, tar, zipped, git])
def test_every_kind_of_source_finds_its_headers(tmp_path: Path, make):
    texts = {one.path: one.text for one in find_sources(make(tmp_path), None).files}
    assert texts["app/kernel/k.cl"] == EXPANDED
    two = texts["app/kernel/two.cl"]
    assert two == (
        TREE["app/kernel/own.h"] + "\n" + EXPANDED + '\n#include "missing.h"\n'
        "__kernel void two(__global int *x) { x[0] = own(1); }\n"
    )


def test_the_kernel_stands_alone(tmp_path: Path):
    kernels = {one.path: one for one in read_sources([folder(tmp_path)]).kernels if one.name == "k"}
    kernel = kernels["app/kernel/k.cl"]
    assert kernel.failure is None
    assert "#include" not in kernel.source
    alone = read_sources([tmp_path / "s" / "app" / "kernel" / "k.cl"]).kernels[0]
    assert "#include" in alone.source  # the header is above the one file that was named


def expand(text: str, headers: dict[str, str]) -> str | None:
    file = SourceFile(path="a/k.cl", suite="s", sha256="", text=text, problem="")
    return with_includes([file], headers.get)[0].text


def test_headers_that_never_end_or_come_once():
    endless = {"a/x.h": '#include "x.h"\n'}
    assert expand('#include "x.h"\n', endless) == '#include "x.h"\n'
    wide = {"a/x.h": '#include "y.h"\n' * 9, "a/y.h": "int x;\n" * 30_000}
    assert expand('#include "x.h"\n', wide) == '#include "x.h"\n'
    once = {"a/x.h": "#pragma once\nint x;\n"}
    assert expand('#include "x.h"\n#include "x.h"\n', once) == "\nint x;\n\n\n"


def test_nothing_outside_is_read(tmp_path: Path):
    root = folder(tmp_path)
    (tmp_path / "outside.h").write_text("int secret;\n")
    (root / "link.h").symlink_to(tmp_path / "outside.h")
    (root / "large.h").write_text(" " * (MAX_INCLUDED_BYTES + 1))
    names = (
        "../outside.h",
        "../../outside.h",
        str(tmp_path / "outside.h"),
        "link.h",
        "large.h",
        "app",
        "\0",
    )
    text = "".join(f'#include "{name}"\n' for name in names if name != "\0")
    (root / "k.cl").write_text(text + "__kernel void k(__global int *x) { x[0] = 1; }\n")
    found = {one.path: one.text for one in find_sources(root, None).files}
    assert found["k.cl"] == (root / "k.cl").read_text()

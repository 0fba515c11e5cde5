"""Headers of a source tree become part of the kernels that include them, and nothing else is looked at."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from workers.corpus import includes as corpus_includes
from workers.corpus.files import MAX_INCLUDED_BYTES, SourceFile
from workers.corpus.includes import with_includes
from workers.corpus.read import read_sources
from workers.corpus.sources import find_sources
from workers.source.front_end import read_kernels

TREE = {
    "app/main.h": "#define fp float\n#define THREADS 64\n",
    "app/kernel/k.cl": '#include "./main.h"\n__kernel void k(__global fp *x) { x[0] = THREADS; }\n',
    "app/kernel/own.h": "int own(int x) { return x; }\n",
    "app/kernel/two.cl": '#  include "own.h"  // its own\n#include "k.cl"\n#include "missing.h"\n'
    "__kernel void two(__global int *x) { x[0] = own(1); }\n",
}
EXPANDED = TREE["app/main.h"] + "\n__kernel void k(__global fp *x) { x[0] = THREADS; }\n"


def folder(where: Path, members: dict[str, str] = TREE) -> Path:
    for name, text in members.items():
        (where / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (where / "s" / name).write_text(text)
    return where / "s"


def tar(where: Path, members: dict[str, str] = TREE) -> Path:
    with tarfile.open(where / "s.tar.gz", "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return where / "s.tar.gz"


def zipped(where: Path, members: dict[str, str] = TREE) -> Path:
    with zipfile.ZipFile(where / "s.zip", "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return where / "s.zip"


def git(where: Path, members: dict[str, str] = TREE) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs the git command")
    root = folder(where, {key: text for key, text in members.items() if ".git/" not in key})
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-f", "."), ("commit", "-q", "-m", "one")):
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


def test_an_include_in_a_comment_or_a_text_is_none():
    licence = {"a/lic.h": "/* licence */\n"}
    for text in (
        '/*\n#include "lic.h"\n*/\nint x;\n',
        '// one \\\n#include "lic.h"\nint x;\n',
        '#define A \\\n#include "lic.h"\nint x;\n',
        '#define QUOTE "\\\n#include \\"lic.h\\" "\nint x;\n',
    ):
        assert expand(text, licence) == text
    assert expand('// it\'s "\n#include "lic.h"\n', licence) == "// it's \"\n/* licence */\n\n"
    within = {"a/x.h": '/*\n#include "lic.h"\n*/\n', **licence}
    assert expand('#include "x.h"\n', within) == within["a/x.h"] + "\n"


def test_a_comment_behind_an_include_stays_whole():
    header = {"a/x.h": "int x; // no newline"}
    assert expand('#include "x.h" /* one\ntwo */\nint y;\n', header) == (
        "int x; // no newline\n/* one\ntwo */\nint y;\n"
    )
    assert expand('#include "x.h" // one \\\n two\nint y;\n', header) == (
        "int x; // no newline\nint y;\n"
    )
    assert expand('#include "x.h"\nint y;\n', {"a/x.h": "int x; \\"}) == "int x; \\\n\nint y;\n"


ONCE = {"a/once.h": "#pragma once\ntypedef float real;\n", "a/again.h": '#include "once.h"\n'}


def test_a_header_that_comes_once_is_in_every_branch():
    text = (
        '#ifdef CUDA\n#include "once.h"\n#else\n#include "once.h"\n#endif\n'
        "__kernel void k(__global real *x) { x[0] = 1; }\n"
    )
    expanded = expand(text, ONCE)
    assert expanded is not None
    assert expanded.count("typedef float real;") == 2
    (kernel,) = read_kernels(expanded)
    assert kernel.failure is None
    assert kernel.build_options == ""
    assert kernel.signature is not None


@pytest.mark.parametrize(
    ("text", "num_copies"),
    [
        ('#include "once.h"\n#ifdef A\n#include "again.h"\n#endif\n#include "once.h"\n', 1),
        ('#if A\n#include "once.h"\n#if B\n#include "once.h"\n#endif\n#include "again.h"\n#endif\n', 1),
        ('#if A\n#include "again.h"\n#endif\n#include "once.h"\n#include "again.h"\n', 2),
        ('#if A\n#elif B\n#include "once.h"\n#else\n#include "once.h"\n#endif\n', 2),
        ('#endif\n#else\n#include "once.h"\n#include "once.h"\n', 1),
    ],
)  # fmt: skip
def test_a_copy_is_left_out_where_another_is_certain_before_it(text: str, num_copies: int):
    expanded = expand(text, ONCE) or ""
    assert expanded.count("typedef") == num_copies
    assert expanded.count("#ifndef LLMPERF_ONCE_1") == (num_copies if num_copies > 1 else 0)
    assert "pragma" not in expanded


def test_headers_that_include_each_other_once_end():
    circle = {
        "a/x.h": '#pragma once\n#include "y.h"\nint x;\n',
        "a/y.h": '#pragma once\n#include "x.h"\nint y;\n',
    }
    expanded = expand('#include "x.h"\n', circle) or ""
    assert expanded.split() == ["int", "y;", "int", "x;"]


def test_small_files_cannot_fill_the_memory_with_a_large_header(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus_includes, "MAX_EXPANDED_BYTES", 10 * 2**18)
    header = {"h.h": "//" + " " * 2**18}
    files = [
        SourceFile(path=f"{i}.cl", suite="s", sha256="", text=text, problem="")
        for i, text in enumerate(['#include "h.h"\n'] * 20 + ["int x; // includes nothing\n"])
    ]
    found = with_includes(files, header.get)
    assert [one.text is None for one in found] == [False] * 9 + [True] * 11 + [False]
    assert "its headers do not fit" in found[10].problem
    assert found[-1] == files[-1]


@pytest.mark.timeout(30)
def test_a_text_of_nothing_but_includes_stays_as_it_is():
    text = '#include "n.h"\n' * 60_000
    assert expand(text, {}) == text


@pytest.mark.timeout(10)  # it took minutes when each include searched the header's text again
def test_a_header_that_comes_once_is_searched_once():
    header = {"a/h.h": "''" * 125_000 + "\n#pragma once\nint x;\n"}
    expanded = expand('#include "h.h"\n' * 4_000, header) or ""
    assert expanded.count("int x;") == 1


DEEP = "/".join(f"d{depth}" for depth in range(32))


@pytest.mark.timeout(10)  # it took minutes when each include searched all folders
def test_a_missing_header_is_looked_for_once_in_a_folder():
    asked: list[str] = []
    text = '#include "x.h"\n' * 4_000
    files = [
        SourceFile(path=f"{DEEP}/{i}.cl", suite="s", sha256="", text=text, problem="")
        for i in range(60)
    ]
    assert [one.text for one in with_includes(files, asked.append)] == ([text] * 60)
    assert len(asked) == len(set(asked)) == 32


def test_the_search_for_headers_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus_includes, "_MAX_STEPS", 50_000)
    text = "".join(f'#include "{i}.h"\n' for i in range(200))
    files = [
        SourceFile(path=f"{DEEP}/{i}/k.cl", suite="s", sha256="", text=text, problem="")
        for i in range(4)
    ]
    found = with_includes(files, {}.get)
    assert [one.text is None for one in found] == [False, False, True, True]
    assert "too many directives" in found[-1].problem


@pytest.mark.timeout(10)  # it took minutes when each include looked at each open branch
def test_branches_without_an_end_are_fast():
    header = {"a/h.h": "#pragma once\n"}
    text = "#if A\n" * 100_000 + '#include "h.h"\n' * 4_000
    assert (expand(text, header) or "").startswith("#if A\n")


def test_only_headers_and_sources_that_are_not_hidden_are_put_in(tmp_path: Path):
    names = (".env", ".x/h.h", "defs.cfg", "notes.txt", ".git/config.h")
    text = "".join(f'#include "{name}"\n' for name in names)
    members = {"k.cl": text, **dict.fromkeys(names, "secret\n")}
    found = []
    for make in (folder, tar, zipped, git):
        where = tmp_path / make.__name__
        where.mkdir()
        found.append(find_sources(make(where, members), None).files[0].text)
    (tmp_path / "folder" / "s" / "k.cl").rename(tmp_path / "folder" / "s" / "alone.cl")
    found.append(find_sources(tmp_path / "folder" / "s" / "alone.cl", None).files[0].text)
    assert found == [text] * 5


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

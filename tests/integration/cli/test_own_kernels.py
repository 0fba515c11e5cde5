"""``llmperf kernels``: what it lists and copies, from a checkout and from our wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from llmperf.exits import Exit
from tests.support.collecting import KERNELS, llmperf_command
from tests.support.in_process import assert_refused, llmperf
from tests.support.truth.side_files import read_side_files
from tests.support.wheel import BUILD_FILES, PACKAGES


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_it_lists_every_kernel_with_dims_and_what_it_computes() -> None:
    listed = json.loads(llmperf("kernels", "--json").out)
    wanted = {(one.name, one.dims) for one in read_side_files()}
    assert {(one["name"], one["dims"]) for one in listed} == wanted
    assert all(one["description"] and (KERNELS / one["file"]).is_file() for one in listed)
    assert "y = alpha * x + y" in next(
        one["description"] for one in listed if one["name"] == "saxpy"
    )
    assert "saxpy.cl" in llmperf("kernels").out


def test_it_copies_and_never_replaces_a_changed_file(tmp_path: Path) -> None:
    out = tmp_path / "new" / "k"
    for _ in range(2):  # equal files may be there
        done = llmperf("kernels", "--copy", out)
        assert done.code == 0, done.err
    assert contents(out) == contents(KERNELS)
    (out / "saxpy.cl").write_text("mine")
    (out / "vadd.cl").unlink()
    assert_refused(
        llmperf("kernels", "--copy", out),
        Exit.USAGE,
        f"--copy {out} holds other files under the names saxpy.cl",
        "name another",
    )
    assert (out / "saxpy.cl").read_text() == "mine"
    assert not (out / "vadd.cl").exists(), "all or nothing"
    done = llmperf("kernels", "--copy", out / "saxpy.cl")
    assert_refused(done, Exit.USAGE, "is a file, not a folder")
    assert llmperf("kernels", "--copy", out, "--json").code == Exit.USAGE
    assert_refused(
        llmperf("kernels", "--copy", "-"), Exit.USAGE, "--copy -: this output cannot go to stdout"
    )


def test_a_wheel_brings_them(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    names = {path.name for path in (tmp_path / "site").iterdir() if path.suffix != ".dist-info"}
    assert names == set(PACKAGES), "no other top-level name, no tests"
    assert (tmp_path / "site" / "configs" / "collect" / "demo.toml").is_file()
    for name in BUILD_FILES:
        assert not (tmp_path / "site" / name).exists()
    done = subprocess.run(
        llmperf_command("kernels", "--copy", "k"),
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "k") == contents(KERNELS)
    shutil.rmtree(tmp_path / "site" / "llmperf" / "kernels")
    done = subprocess.run(
        llmperf_command("kernels"),
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (Exit.BAD_INPUT, "")
    assert "this installation has no kernels" in done.stderr

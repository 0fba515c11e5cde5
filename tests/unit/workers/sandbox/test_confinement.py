"""A confined process writes only where it may, uses no TCP and reaches no process outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.landlock import landlock_version
from workers.device.interface import DeviceRef
from workers.sandbox.confinement import confine

PROGRAM = """
import json, os, signal, socket, subprocess, sys
from workers.sandbox.confinement import confine_writing
allowed, other, port = sys.argv[1:]
found = {"confined": confine_writing([allowed, "/nonexistent/folder"])}
def attempt(name, work):
    try:
        work()
        found[name] = "done"
    except OSError as error:
        found[name] = error.strerror
attempt("write", lambda: open(allowed + "/a", "w").write("x"))
attempt("rename", lambda: os.rename(allowed + "/a", allowed + "/b"))
attempt("folder", lambda: os.mkdir(allowed + "/c"))
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("read outside", lambda: open(other + "/kept").read())
attempt("write outside", lambda: open(other + "/kept", "w"))
attempt("create outside", lambda: open(other + "/new", "w"))
attempt("truncate outside", lambda: os.truncate(other + "/kept", 0))
attempt("remove outside", lambda: os.remove(other + "/kept"))
attempt("link outside", lambda: os.symlink("x", other + "/link"))
attempt("move in", lambda: os.rename(other + "/kept", allowed + "/kept"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(port))))
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("own child", lambda: subprocess.run(["/bin/sh", "-c", f"echo > {other}/shell"], stderr=-3))
print(json.dumps(found))
"""


@pytest.mark.skipif(
    landlock_version() < 4, reason="this Linux has no Landlock, or one that knows no TCP"
)
def test_what_a_confined_process_can_do(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "kept").write_text("precious", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(allowed), str(other), port],
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout)
    assert found.pop("confined")
    may = ("write", "rename", "folder", "null", "read outside", "own child")
    assert {name: found.pop(name) for name in may} == dict.fromkeys(may, "done")
    if landlock_version() < 6:
        found.pop("signal")
    assert set(found.values()) <= {
        os.strerror(1),
        os.strerror(13),
        os.strerror(18),
    }, found  # EPERM, EACCES, EXDEV (a rename into another part of the tree)
    assert sorted(path.name for path in other.iterdir()) == ["kept"]
    assert (other / "kept").read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize("selector", ["cuda:0", "replay:x.json"])
def test_what_runs_no_kernel_in_the_process_is_not_confined(selector: str) -> None:
    assert not confine(DeviceRef(selector=selector, platform="", name="", environment={}))

"""The filter refuses sockets and calls on other processes and files, and leaves what runtimes need."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.landlock import needs_filters
from workers.sandbox.system_calls import refuse_system_calls

MACHINES = ("x86_64", "aarch64")
COLUMN = MACHINES.index(platform.machine()) if platform.machine() in MACHINES else None

SETUP = """
import ctypes, errno, json, os, resource, signal, socket, subprocess, sys, threading
from workers.sandbox.system_calls import OWN_ONLY, REFUSED, refuse_system_calls
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def attempt(name, work):
    try:
        result = work()
        found[name] = result if isinstance(result, int) else 0
    except OSError as error:
        found[name] = error.errno
def call(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*arguments) == -1 else 0
"""

EACH_NUMBER = """
column, hosts = int(sys.argv[1]), int(sys.argv[2])
assert refuse_system_calls()
for name, numbers in REFUSED.items():
    if numbers[column] is not None:  # arguments that no call accepts, if it should be let through
        found[name] = call(numbers[column], *[ctypes.c_long(-1)] * 6)
for name, numbers in OWN_ONLY.items():
    found[name] = call(numbers[column], hosts, 0, 0, 0)
print(json.dumps(found))
"""

ATTACKS = """
path, other = sys.argv[1], int(sys.argv[2])
ready, go = threading.Event(), threading.Event()
def in_thread():  # it was there before the filter
    ready.set()
    go.wait()
    attempt("a thread's socket", socket.socket)
thread = threading.Thread(target=in_thread)
thread.start()
ready.wait()
held = open(path)
assert refuse_system_calls()
go.set()
thread.join()
for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
    attempt(family, lambda: socket.socket(getattr(socket, family), socket.SOCK_DGRAM))
attempt("tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("mptcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("limits", lambda: resource.prlimit(other, resource.RLIMIT_CORE, (0, 0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, other, 19))
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("scheduler", lambda: os.sched_setscheduler(other, os.SCHED_BATCH, os.sched_param(0)))
attempt("mode", lambda: os.chmod(path, 0o777))
attempt("mode of a file held", lambda: os.fchmod(held.fileno(), 0o777))
attempt("owner", lambda: os.chown(path, os.getuid(), -1))
attempt("times", lambda: os.utime(path, (1, 1)))
attempt("attribute", lambda: os.setxattr(path, "user.x", b"1"))
attempt("no attribute", lambda: os.removexattr(path, "user.x"))
attempt("session", os.setsid)
attempt("group", lambda: os.setpgid(0, 0))
attempt("namespace", lambda: call({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))
attempt("shm", lambda: call({"x86_64": 29, "aarch64": 194}[os.uname().machine], 0, 4096, 0o1600))
import fcntl
attempt("flags", lambda: fcntl.ioctl(held, 0x40086602, bytes(8)))
attempt("terminal", lambda: fcntl.ioctl(held, 0x5412, b"x"))
attempt("x32", lambda: call(0x40000000 | 39))
in_python = "import socket; socket.socket()"
done = subprocess.run([sys.executable, "-c", in_python], stderr=subprocess.PIPE, text=True)
found["a program's socket"] = errno.EPERM if "Operation not permitted" in done.stderr else 0
print(json.dumps(found))
"""

NEEDS = """
folder = sys.argv[1]
assert refuse_system_calls()
attempt("pair", lambda: [end.close() for end in socket.socketpair()])
attempt("thread", lambda: threading.Thread(target=int).start())
attempt("program", lambda: subprocess.run(["/bin/true"]).returncode)
attempt("fork", lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])
attempt("own limit", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
attempt("own processors", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
attempt("a thread's processors", lambda: os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0)))
attempt("own scheduler", lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)))
attempt("write", lambda: open(folder + "/a", "w").close())
attempt("rename", lambda: os.rename(folder + "/a", folder + "/b"))
attempt("private memory", lambda: os.close(os.memfd_create("x")))
attempt("end a program", lambda: subprocess.Popen(["/bin/sleep", "60"]).kill())
print(json.dumps(found))
"""


def run(program: str, *arguments: object) -> dict[str, int]:
    """Return the error numbers of what a process attempts; 0: it was done."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@needs_filters
def test_every_call_of_the_table_is_refused() -> None:
    found = run(EACH_NUMBER, COLUMN, os.getpid())
    assert {name for name, error in found.items() if error != errno.EPERM} == set()
    assert len(found) > 80


@needs_filters
def test_what_a_kernel_could_try(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("precious", encoding="utf-8")
    before = path.stat()
    with subprocess.Popen(["sleep", "60"]) as other:
        nice = os.getpriority(os.PRIO_PROCESS, other.pid)
        try:
            found = run(ATTACKS, path, other.pid)
            assert os.getpriority(os.PRIO_PROCESS, other.pid) == nice
        finally:
            other.kill()
    if platform.machine() != "x86_64":
        found.pop("x32")
    assert {name for name, error in found.items() if error != errno.EPERM} == set(), found
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@needs_filters
def test_what_runtimes_and_llmperf_need(tmp_path: Path) -> None:
    found = run(NEEDS, tmp_path)
    assert set(found.values()) == {0}, found


@needs_filters
@pytest.mark.parametrize(("selector", "has_filter"), [("cpu:0", "2"), ("cuda:0", "0")])
def test_only_what_runs_kernels_in_the_process_gets_the_filter(
    tmp_path: Path, selector: str, has_filter: str
) -> None:
    if has_filter == "0" and _filters_of("self") != "0":
        pytest.skip("this process has a filter already")
    code = (
        "from workers.device.interface import DeviceRef; from workers.sandbox.confinement import confine\n"
        f"confine(DeviceRef(selector={selector!r}, platform='', name='', environment={{}}))\n"
        "print(open('/proc/self/status').read())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert _seccomp(done.stdout) == has_filter


def test_no_table_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not refuse_system_calls()


def _filters_of(process: str) -> str:
    return _seccomp(Path(f"/proc/{process}/status").read_text(encoding="utf-8"))


def _seccomp(status: str) -> str:
    lines = (line.split() for line in status.splitlines())
    return next(words[1] for words in lines if words[:1] == ["Seccomp:"])

"""The library of bad disks, clocks and networks hits the processes that it is given; without a C compiler storms do without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, UNKIND, drawn_from
from tests.chaos.unkind import NO_COMPILER, Unkind, find_compiler
from tests.support.servers.redis_server import RedisServer

COMPILER = find_compiler()
needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason=f"{NO_COMPILER}: storms here leave out {', '.join(UNKIND)}"
)
VICTIM = """
import errno, os, socket, sys, time
data, port = sys.argv[1], int(sys.argv[2])
print(flush=True)  # it is there
input()
time.sleep(0.02)  # orders are looked for every 10 ms
{what}
"""
WRITE = """
try:
    with open(data + '/file', 'w') as file:
        file.write('x')
    print('written')
except OSError as error:
    print(errno.errorcode[error.errno])
"""
SYNC = """
with open(data + '/file', 'w') as file:
    began_s = time.monotonic()
    os.fsync(file.fileno())
    print('late' if time.monotonic() - began_s > 0.6 else 'in time')
"""
LOOK_AT_THE_CLOCK = """
print('wrong' if abs(time.time() - os.stat(data).st_mtime) > 80000 else 'right')
"""
CONNECT = """
try:
    socket.create_connection(('127.0.0.1', port)).close()
    print('connected')
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def said_by(unkind: Unkind, data: Path, port: int, what: str, *order: object) -> str:
    """Return what a process says of what it does, after ``order`` was given for it."""
    with unkind.around():
        process = subprocess.Popen(
            [sys.executable, "-c", VICTIM.format(what=what), str(data), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        if order:
            unkind.inflict(process.pid, str(order[0]), *order[1:])
        told, _ = process.communicate("\n", timeout=30)
    return told.strip()


@needs_compiler
@pytest.mark.parametrize(
    ("order", "what", "spared", "hit"),
    [
        pytest.param(("full",), WRITE, "written", "ENOSPC", id="full"),
        pytest.param(("slow", 0.7), SYNC, "in time", "late", id="slow"),
        pytest.param(("skew", -86400), LOOK_AT_THE_CLOCK, "right", "wrong", id="skew"),
        pytest.param(("cut", "PORT"), CONNECT, "connected", "ENETUNREACH", id="cut"),
    ],
)
def test_only_who_is_told_of_is_hit(
    tmp_path: Path, order: tuple[object, ...], what: str, spared: str, hit: str
) -> None:
    assert COMPILER is not None
    data = tmp_path / "data"
    data.mkdir()
    unkind = Unkind(COMPILER, tmp_path / "unkind", data)
    server = RedisServer(tmp_path / "redis")
    try:
        order = tuple(server.port if part == "PORT" else part for part in order)
        assert said_by(unkind, data, server.port, what) == spared
        assert said_by(unkind, data, server.port, what, *order) == hit
    finally:
        server.kill()


def test_a_storm_without_a_compiler_leaves_out_what_needs_one() -> None:
    every = {fault.name for fault in drawn_from(has_compiler=True)}
    assert every == {fault.name for fault in FAULTS}
    assert every - {fault.name for fault in drawn_from(has_compiler=False)} == set(UNKIND)
    assert UNKIND == ("cut_off", "fill_disk", "set_clock", "slow_disk")

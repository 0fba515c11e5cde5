"""Who is alive: this process, its colleagues here and elsewhere, and those of which it cannot be known."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from llmperf_common.ledger.holder import boot_clock_s, has_ended, is_alive, this_process

US = this_process()
BOOT, _, NAMESPACE = US.boot_id.partition("+")


def test_this_process_is_alive() -> None:
    assert is_alive(US)
    assert not has_ended(US)
    assert NAMESPACE.isdigit()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 2**22 + 1},
        {"start_ticks": US.start_ticks + 2},
        {"start_ticks": US.start_ticks - 2},
        {"boot_id": f"another-boot+{NAMESPACE}"},
    ],
    ids=["no such pid", "the pid was another's", "the pid is another's", "an earlier boot"],
)
def test_the_dead_of_this_host(change: dict[str, object]) -> None:
    dead = dataclasses.replace(US, **change)  # type: ignore[arg-type]
    assert not is_alive(dead)
    assert has_ended(dead) == (dead.boot_id == US.boot_id), "another machine may have our name"


@pytest.mark.parametrize("num_ticks", [-1, 1])
def test_a_holder_seen_from_another_time_namespace_is_alive(num_ticks: int) -> None:
    """The shift between the namespaces may be no whole number of ticks."""
    seen = dataclasses.replace(US, start_ticks=US.start_ticks + num_ticks)
    assert is_alive(seen)
    assert not has_ended(seen)


@pytest.mark.parametrize(
    "change",
    [{"host": "elsewhere"}, {"boot_id": f"{BOOT}+1"}, {"boot_id": BOOT}],
    ids=["another host", "another container of this host", "who does not say which"],
)
def test_only_a_lease_tells_of_others(change: dict[str, object]) -> None:
    other = dataclasses.replace(US, pid=2**22 + 1, **change)  # type: ignore[arg-type]
    assert is_alive(other)
    assert not has_ended(other)


def test_a_process_that_ended_is_dead() -> None:
    told = "from llmperf_common.ledger.holder import this_process as t; h = t(); print(h.pid, h.start_ticks)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    pid, ticks = map(int, done.stdout.split())
    assert not is_alive(dataclasses.replace(US, pid=pid, start_ticks=ticks))


def test_time_namespaces_agree_on_the_clock_and_on_start_times() -> None:
    pid, told = (
        os.getpid(),
        (
            "import sys; from llmperf_common.ledger import holder as h; "
            "print(h.boot_clock_s(), h._start_ticks(int(sys.argv[1])))"
        ),
    )
    shifted = ["unshare", "--time", "--boottime", "100000", "--fork", "--kill-child"]
    done = subprocess.run(
        [*shifted, sys.executable, "-c", told, str(pid)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip(f"no time namespaces here: {done.stderr.strip()[-200:]}")
    clock_s, start_ticks = done.stdout.split()
    assert abs(float(clock_s) - boot_clock_s()) < 60.0
    assert int(start_ticks) == US.start_ticks


_SEEN = """
import dataclasses, sys
from llmperf_common.ledger.holder import has_ended, is_alive, this_process
us = this_process()
missing, root = (dataclasses.replace(us, pid=pid, start_ticks=0) for pid in (2**22 + 1, 1))
print(has_ended(us), has_ended(missing), has_ended(root), is_alive(missing))
"""


@pytest.mark.parametrize(("hidepid", "missing_has_ended"), [(0, True), (1, True), (2, False)])
def test_hidden_processes_are_not_taken_for_dead(hidepid: int, missing_has_ended: bool) -> None:
    """As an ordinary user beside root's process 1, whose start is another than the holder's."""
    as_other_user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    try:
        reads = subprocess.run(
            [*as_other_user, sys.executable, "-c", "import llmperf_common"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename} here")
    if reads.returncode != 0:
        pytest.skip(f"an ordinary user cannot run this tree: {reads.stderr.strip()[-200:]}")
    mounted = f"mount -t proc -o hidepid={hidepid} proc /proc"
    as_nobody = 'setpriv --reuid 65534 --regid 65534 --clear-groups "$0" -c "$1"'
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "sh",
        "-c",
        f"{mounted} && {as_nobody}; exit $?",
    ]
    try:
        done = subprocess.run(
            [*command, sys.executable, _SEEN],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename} here")
    if "Operation not permitted" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    root_has_ended = hidepid == 0  # its start is another's, where it can be seen
    told = (False, missing_has_ended, root_has_ended, not missing_has_ended)
    assert done.stdout.split() == [str(one) for one in told], done.stderr

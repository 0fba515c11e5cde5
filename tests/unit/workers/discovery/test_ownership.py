"""One owner a GPU: real locks between real processes, and strangers by the real ``pynvml``."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from llmperf.exits import Exit, exit_code_of
from tests.support.factories.dataset_factory import make_device
from tests.support.factories.fake_nvml import UUID, FakeCard, driver_with
from workers.device.interface import DeviceRef
from workers.device.nvidia.gpu_lock import GpuTakenError, gpu_lock, lock_path, owner_of
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE, lock_folder
from workers.device.nvidia.nvml import INSTALL
from workers.device.nvidia.nvml_gpu import ComputeProcess
from workers.discovery import ownership
from workers.discovery.candidates import Source
from workers.discovery.find import DeviceReport, TriedDevice
from workers.discovery.ownership import (
    GpuClaim,
    held_for_analysis,
    needs_owner,
    strangers_among,
)

GPU = replace(
    make_device(),
    name="NVIDIA H200",
    platform="NVIDIA CUDA",
    device_uuid=UUID.removeprefix("GPU-"),
)
REF = DeviceRef(selector="cuda:0", platform="NVIDIA CUDA", name="NVIDIA H200")
OUT = "/data/run1"

HOLD = """
import sys, time
from tests.unit.workers.discovery.test_ownership import GPU
from workers.device.nvidia.gpu_lock import gpu_lock
with gpu_lock(GPU, sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock folder of the test's own, and little patience."""
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("workers.device.nvidia.gpu_lock.PATIENCE_S", 0.2)
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.2)
    return tmp_path


@pytest.fixture
def pynvml() -> ModuleType:
    return pytest.importorskip("pynvml", reason=f"nvidia-ml-py is not installed: {INSTALL}")


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the GPU."""
    command = [sys.executable, "-c", HOLD, OUT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_by_whom(holder):
    with pytest.raises(GpuTakenError) as caught, gpu_lock(GPU, "mine"):
        pytest.fail("two owners")
    for words in ("NVIDIA H200", GPU.device_uuid, f"pid {holder.pid} of ", OUT, "--device"):
        assert words in str(caught.value)
    assert exit_code_of(caught.value) is Exit.NO_DEVICE
    owner = owner_of(GPU)
    assert owner is not None
    assert (owner.pid, owner.out) == (holder.pid, OUT)
    other = replace(GPU, device_uuid="ffffffff-0001-0002-0003-0123456789ab")
    with gpu_lock(other, OUT):
        assert owner_of(other) is not None


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_lock_goes_with_its_holder(holder, ending):
    if ending is None:
        holder.stdin.close()
    else:
        holder.send_signal(ending)
    holder.wait(10)
    assert owner_of(GPU) is None, "what a dead holder has written is no owner"
    with gpu_lock(GPU, OUT):
        owner = owner_of(GPU)
        assert owner is not None
        assert owner.pid == os.getpid()
    assert owner_of(GPU) is None
    assert lock_path(GPU).read_bytes() == b""


def test_a_holder_that_is_just_ending_is_waited_for(holder, monkeypatch):
    monkeypatch.setattr("workers.device.nvidia.gpu_lock.PATIENCE_S", 10.0)
    ending = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {holder.pid}"])
    started_s = time.monotonic()
    with gpu_lock(GPU, OUT):
        assert 0.3 < time.monotonic() - started_s < 9
    ending.wait()


def test_children_do_not_hold_what_their_parent_held():
    with gpu_lock(GPU, OUT):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with gpu_lock(GPU, OUT):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_everybody_may_lock_whatever_the_umask(lock_dir):
    before = os.umask(0o077)
    try:
        with gpu_lock(GPU, OUT):
            pass
    finally:
        os.umask(before)
    mode = stat.S_IMODE(lock_path(GPU).stat().st_mode)
    assert mode == 0o666
    assert lock_path(GPU).name == f"llmperf-gpu-{GPU.device_uuid}.lock"
    assert lock_path(GPU).parent == lock_dir


@pytest.mark.parametrize("trap", ["symlink", "dangling", "hard link", "folder", "fifo"])
def test_traps_in_a_folder_of_everybodys_are_refused(lock_dir, trap):
    victim = lock_dir / "victim"
    if trap != "dangling":
        victim.write_text("precious")
    path = lock_path(GPU)
    if trap in ("symlink", "dangling"):
        path.symlink_to(victim)
    elif trap == "hard link":
        os.link(victim, path)
    elif trap == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(GpuTakenError, match=f"cannot be locked.*{LOCK_FOLDER_VARIABLE}"), gpu_lock(GPU, OUT):  # fmt: skip
        pytest.fail("locked a trap")
    if trap == "dangling":
        assert not victim.exists()
    else:
        assert victim.read_text() == "precious"
    assert owner_of(GPU) is None


def test_a_folder_that_is_not_there_is_a_message(monkeypatch, lock_dir):
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(lock_dir / "nowhere"))
    with pytest.raises(GpuTakenError, match=r"nowhere.*No such file"), gpu_lock(GPU, OUT):
        pytest.fail("locked nothing")


def test_what_a_holder_wrote_is_not_trusted(holder):
    for text in ("", "{", "[]", '{"pid": "x"}'):
        lock_path(GPU).write_text(text)
        assert owner_of(GPU) is None
        with pytest.raises(GpuTakenError, match="a process that holds"), gpu_lock(GPU, OUT):
            pytest.fail("two owners")
    note = {"pid": 7, "host": "h", "user": "u", "started_at": "now", "out": "\x1b[2Jgone"}
    lock_path(GPU).write_text(json.dumps(note))
    owner = owner_of(GPU)
    assert owner is not None
    assert owner.out == "?[2Jgone"


def test_the_folder_is_one_for_all_users(tmp_path):
    assert lock_folder({LOCK_FOLDER_VARIABLE: "/somewhere"}) == Path("/somewhere")
    shared = lock_folder({"TMPDIR": str(tmp_path)})
    assert shared in (Path("/run/lock"), Path("/tmp"))
    assert shared.stat().st_mode & stat.S_IWOTH


def test_which_devices_have_owners():
    assert needs_owner(GPU, REF)
    assert not needs_owner(make_device(), DeviceRef(selector="cpu", platform="replay", name="d"))
    recorded = DeviceRef(selector="replay:r.json", platform="replay", name="NVIDIA H200")
    assert not needs_owner(GPU, recorded)


def test_who_analyses_on_a_gpu_holds_it(holder):
    tried = TriedDevice(ref=REF, device=GPU, usable=True, reason="", source=Source.SYSTEM_ICD)
    report = DeviceReport(devices=(tried,), absent=())
    with (
        pytest.raises(GpuTakenError, match="is taken by"),
        held_for_analysis(REF, report, "k.parquet"),
    ):
        pytest.fail("two owners")
    holder.kill()
    holder.wait()
    with held_for_analysis(REF, report, "k.parquet"):
        owner = owner_of(GPU)
        assert owner is not None
        assert Path(owner.out).name == "k.parquet"


def test_a_cpu_device_is_held_by_nobody(lock_dir):
    ref = DeviceRef(selector="cpu", platform="replay", name="d")
    cpu = TriedDevice(
        ref=ref, device=make_device(), usable=True, reason="", source=Source.SYSTEM_ICD
    )
    with held_for_analysis(ref, DeviceReport(devices=(cpu,), absent=()), "k.parquet"):
        assert list(lock_dir.iterdir()) == []


def test_strangers(lock_dir):
    sibling = subprocess.Popen(
        ["sleep", "60"], start_new_session=True
    )  # a child of ours all the same
    gone = subprocess.Popen(["true"])
    gone.wait()
    try:
        found = tuple(
            ComputeProcess(pid=pid, used_memory_bytes=None)
            for pid in (os.getpid(), os.getppid(), sibling.pid, 1, gone.pid)
        )
        pids = [one.pid for one in strangers_among(found, frozenset())]
        assert pids == [pid for pid in (1,) if 1 not in ancestors()]
        # A pid that is not here, yet was there before us, is a process of another container.
        assert gone.pid in [one.pid for one in strangers_among(found, frozenset({gone.pid}))]
    finally:
        sibling.kill()
        sibling.wait()


def ancestors() -> tuple[int, ...]:
    return ownership._ancestors(os.getpid())


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that is not of our tree: its parent has gone."""
    program = (
        "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    pid = int(done.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_a_busy_gpu_is_refused_or_borne(pynvml, stranger, caplog):
    with driver_with(pynvml, FakeCard(pids=(stranger, os.getpid()))):
        with GpuClaim(REF, out=OUT, allow_busy=False) as claim:
            with pytest.raises(GpuTakenError) as caught:
                claim.take(GPU)
            for words in (f"used by pid {stranger} (sleep)", "limits.allow_busy_gpu=true"):
                assert words in str(caught.value)
            assert str(os.getpid()) not in str(caught.value)
        assert owner_of(GPU) is None
        with (
            caplog.at_level(logging.WARNING),
            GpuClaim(REF, out=OUT, allow_busy=True) as claim,
        ):
            claim.take(GPU)
            assert owner_of(GPU) is not None
    assert "is shared with pid" in caplog.text


def test_a_gpu_of_our_own_is_taken(pynvml):
    with (
        driver_with(pynvml, FakeCard(pids=(os.getpid(),))),
        GpuClaim(REF, out=OUT, allow_busy=False) as claim,
    ):
        claim.take(GPU)
        assert owner_of(GPU) is not None
    assert owner_of(GPU) is None


def test_a_driver_that_lists_nobody_is_told_of(pynvml, caplog):
    card = FakeCard(lacks=frozenset({"nvmlDeviceGetComputeRunningProcesses_v3"}))
    with driver_with(pynvml, card), GpuClaim(REF, out=OUT, allow_busy=False) as claim:
        claim.take(GPU)
    assert "is not known: NVML does not report them" in caplog.text


def test_a_stranger_that_ends_is_waited_for(pynvml, monkeypatch, stranger):
    monkeypatch.setattr(ownership, "PATIENCE_S", 10.0)
    pids = [stranger]
    threading.Timer(0.4, pids.clear).start()
    with (
        driver_with(pynvml, FakeCard(pids=pids)),
        GpuClaim(REF, out=OUT, allow_busy=False) as claim,
    ):
        claim.take(GPU)
    assert not pids


def test_without_nvml_the_lock_still_counts(caplog, holder):
    with (
        GpuClaim(REF, out=OUT, allow_busy=True) as claim,
        pytest.raises(GpuTakenError, match="is taken by"),
    ):
        claim.take(GPU)
    holder.kill()
    holder.wait()
    with GpuClaim(REF, out=OUT, allow_busy=False) as claim:
        claim.take(GPU)
    assert "whether other processes compute on NVIDIA H200 is not known" in caplog.text

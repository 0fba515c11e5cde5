"""A PoCL that aborts or hangs in its compiler: tried once a machine, in bounded time, and nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.unkind import find_compiler
from tests.stub_icd import build_stub
from tests.support.collecting import KERNELS, llmperf_command
from workers.discovery.candidates import POCL_VARIABLE, Candidate, Source, candidates
from workers.discovery.find import NoDevice, choose, try_runtimes_for
from workers.discovery.runtime_trial import RuntimeVerdict, try_runtime
from workers.discovery.trial_verdicts import VerdictFile

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler for the stub"),
]

LIMIT_S = 1.5


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stubs")
    return {mode: build_stub(mode, folder) for mode in ("aborting", "hanging")}


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a scratch folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    return scratch


def pocl(icd: Path) -> Candidate:
    found, _ = candidates(environ={**os.environ, POCL_VARIABLE: str(icd)})
    return next(one for one in found if one.source is Source.PIP_POCL)


def processes_that_name(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in variables and folder.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def test_one_that_hangs_is_ended_with_its_compiler(stubs: dict[str, Path], clean: Path) -> None:
    started_s = time.monotonic()
    verdict = try_runtime(
        pocl(stubs["hanging"]), wanted="pocl", timeout_s=LIMIT_S, listing_timeout_s=60
    )
    assert time.monotonic() - started_s < 30
    assert [device.reason for device in verdict.devices] == [
        "its trial died: no answer within 1.5 s"
    ]
    assert not verdict.ended_itself
    assert list(clean.iterdir()) == []
    wait_for(
        lambda: processes_that_name(str(stubs["hanging"])) == []
    )  # killed, and gone a moment later


def test_one_that_aborts_says_what_it_said(stubs: dict[str, Path], clean: Path) -> None:
    verdict = try_runtime(pocl(stubs["aborting"]), wanted="pocl")
    (device,) = verdict.devices
    assert not device.usable
    assert "SIGABRT: Do not know how to scalarize" in device.reason
    assert list(clean.iterdir()) == []
    wait_for(
        lambda: processes_that_name(str(stubs["aborting"])) == []
    )  # killed, and gone a moment later


def test_a_hung_trial_ends_with_its_parent(stubs: dict[str, Path], clean: Path) -> None:
    code = (
        "import os; from tests.integration.devices.test_broken_runtimes import pocl; from pathlib import Path;"
        "from workers.discovery.runtime_trial import try_runtime;"
        f"try_runtime(pocl(Path({str(stubs['hanging'])!r})), wanted='pocl', timeout_s=90)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    try:
        wait_for(lambda: any("discovery.trial_child" in one for one in hung(stubs)))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not any("discovery.trial_child" in one for one in hung(stubs)))


def hung(stubs: dict[str, Path]) -> list[str]:
    return processes_that_name(f"OCL_ICD_VENDORS={stubs['hanging']}")


def wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about within a minute")


@pytest.mark.slow
def test_a_runtime_is_tried_once_a_machine_and_again_when_asked(
    stubs: dict[str, Path], clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POCL_VARIABLE, str(stubs["aborting"]))
    first, second, again = doctor(), doctor(), doctor("--again")
    assert "trying pip PoCL" in first.stderr
    assert "trying" not in second.stderr
    assert "trying pip PoCL" in again.stderr
    verdicts = [pocl_of(done) for done in (first, second, again)]
    assert all("SIGABRT" in verdict for verdict in verdicts)
    assert "doctor --again" in verdicts[1]
    assert "doctor --again" not in verdicts[2]


def doctor(*options: str) -> subprocess.CompletedProcess[str]:
    command = llmperf_command("doctor", "--json", *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def pocl_of(done: subprocess.CompletedProcess[str]) -> str:
    devices = json.loads(done.stdout)["devices"]
    return next(one["reason"] for one in devices if one["source"] == "pip PoCL")


def test_a_verdict_is_another_one_for_another_driver_and_does_not_last_for_ever(
    stubs: dict[str, Path], clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    icd = tmp_path / "pocl.icd"
    icd.write_text("libpocl-1.so\n", encoding="utf-8")
    died = RuntimeVerdict(
        devices=(), absent=try_runtime(pocl(icd), wanted="pocl").absent, ended_itself=False
    )
    folder = tmp_path / "verdicts"
    folder.mkdir()
    VerdictFile(pocl(icd), folder).write(died)
    kept = VerdictFile(pocl(icd), folder).read()
    assert kept is not None
    assert kept.absent is not None
    assert "(tried on " in kept.absent.reason
    now_s = time.time()
    monkeypatch.setattr("workers.discovery.trial_verdicts.time.time", lambda: now_s + 90_000)
    assert VerdictFile(pocl(icd), folder).read() is None, "a crash is remembered for a day"
    monkeypatch.undo()
    icd.write_text("libpocl-2.so\n", encoding="utf-8")
    assert VerdictFile(pocl(icd), folder).read() is None, "another driver file"


def test_a_broken_file_of_a_verdict_is_no_verdict(
    stubs: dict[str, Path], clean: Path, tmp_path: Path
) -> None:
    candidate = pocl(stubs["aborting"])
    VerdictFile(candidate, tmp_path).write(try_runtime(candidate, wanted="pocl"))
    (path,) = tmp_path.glob("*.json")
    for content in ("", "{", "[]", '{"schema": 1}', '{"schema": 7, "until_s": 9e99}'):
        path.write_text(content, encoding="utf-8")
        assert VerdictFile(candidate, tmp_path).read() is None


def test_each_selector_tries_its_own_runtimes_only(
    stubs: dict[str, Path], clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PoCL that hangs costs nothing to those who did not ask for it."""
    monkeypatch.setenv(POCL_VARIABLE, str(stubs["aborting"]))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "none"))
    (tmp_path / "none").mkdir()
    told: list[str] = []
    none = choose("cuda", tell=told.append)
    assert isinstance(none, NoDevice)
    assert told == []
    assert "pip PoCL: not tried" in none.message()
    try_runtimes_for("pocl", tell=told.append)
    assert [line.partition(" (")[0] for line in told] == ["trying pip PoCL"]
    (tmp_path / "none" / "nvidia.icd").write_text("libnvidia-opencl-is-not-here.so.1\n")
    told.clear()
    choose("cuda:0", tell=told.append)
    choose("pocl", tell=told.append)
    assert [line.partition(" (")[0] for line in told] == ["trying system ICD"]


def test_one_of_four_gpus_is_tried_alone_in_its_own_time(tmp_path: Path, clean: Path) -> None:
    icd = build_stub("hanging", tmp_path, devices="GPUS", name="nvidia-opencl")
    driver = Candidate(source=Source.SYSTEM_ICD, environment={"OCL_ICD_VENDORS": str(icd)})
    verdict = try_runtime(driver, wanted="cuda:1", timeout_s=LIMIT_S, listing_timeout_s=60)
    assert [device.ref.selector for device in verdict.devices] == [f"cuda:{n}" for n in range(4)]
    reasons = [device.reason for device in verdict.devices]
    assert reasons[1] == "its trial died: no answer within 1.5 s"
    assert {reasons[0], reasons[2], reasons[3]} == {"not tried: cuda:1 was asked for"}


@pytest.mark.parametrize("devices", [pytest.param("GPUS", marks=pytest.mark.slow), "EMPTY"])
def test_gpus_are_tried_each_time_also_those_that_were_hidden(
    devices: str, clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    build_stub("aborting", vendors, devices=devices, name="nvidia-opencl")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors))
    monkeypatch.setenv(POCL_VARIABLE, "")
    told: list[str] = []
    for _ in range(2):
        try_runtimes_for("cuda", tell=told.append)
    assert [line.partition(" (")[0] for line in told] == ["trying system ICD"] * 2


def test_a_question_for_a_gpu_leaves_no_verdict_about_a_cpu_device(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    build_stub("aborting", vendors, name="foo")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors))
    monkeypatch.setenv(POCL_VARIABLE, "")
    choose("cuda:0")
    (device,) = try_runtimes_for("pocl").devices
    assert "SIGABRT" in device.reason


def test_a_run_on_another_device_never_tries_it(
    stubs: dict[str, Path], clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POCL_VARIABLE, str(stubs["hanging"]))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    out = ("--corpus", KERNELS / "saxpy.cl", "--out", tmp_path / "out")
    done = subprocess.run(
        llmperf_command("collect", *out, "--device", "cuda"), capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "trying" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("home", ["file", "none"])
def test_a_verdict_need_not_be_kept(
    home: str,
    stubs: dict[str, Path],
    clean: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache folder is a file; or there is no home folder, as for a user without an entry in passwd."""
    (tmp_path / "vendors").mkdir()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "vendors"))  # no usable PoCL comes first
    if home == "file":
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda _uid: {}["no such user"])
    monkeypatch.setenv(POCL_VARIABLE, str(stubs["aborting"]))
    (device,) = [one for one in try_runtimes_for("pocl").devices if one.source is Source.PIP_POCL]
    assert "SIGABRT" in device.reason


def test_a_broken_icd_file_is_no_ones_end(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    (vendors / "broken.icd").write_bytes(b"lib\0x.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors))
    report = try_runtimes_for("cpu")
    assert "broken.icd" in " ".join(one.reason for one in report.absent)


def test_only_the_wheels_pocl_is_left_out_by_the_name_of_the_cpu(stubs: dict[str, Path]) -> None:
    """Another PoCL may name the CPU rightly; one that the user names is tried in any case."""
    by_source = {one.source: one for one in candidates(environ={})[0]}
    assert Source.PIP_POCL not in by_source or by_source[Source.PIP_POCL].known_cpu_only
    assert not pocl(stubs["hanging"]).known_cpu_only

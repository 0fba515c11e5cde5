"""The replay device: validation, answers, misbehaviour (in child processes where it kills)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmperf_common.failures import FailureCode
from llmperf_common.files.plain_files import UnfitFileError
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
)
from workers.device.interface import DeviceFailure, DeviceRef, Launcher
from workers.device.replay import ReplayAnalyser
from workers.discovery.find import choose
from workers.discovery.opening import open_compiler, open_session

EXAMPLE = {
    "device": {"device_class": "replay-small", "compute_units": 8, "peak_dram_gbps": 100},
    "timings": [
        {"kernel": "vadd", "global_size": [1024], "local_size": [64], "time_ns": [810, 795]}
    ],
    "model": {"floor_ns": 4000, "ns_per_work_item": 0.5, "noise": 0.01},
    "seed": 3,
}


def make_kernel(name: str = "vadd") -> Kernel:
    argument = Argument(
        position=0, name="a", kind=ArgumentKind.GLOBAL_BUFFER, type_name="float",
        scalar_type="float", vector_width=1, element_bytes=4, access=Access.READ_WRITE,
    )  # fmt: skip
    signature = Signature(
        arguments=(argument,), dims=1, required_local_size=None, static_local_bytes=0,
        static_features={},
    )  # fmt: skip
    return Kernel(
        kernel_id=f"{name:0<20}", name=name, source="", source_sha256="", path="", suite="",
        family_id="", build_options="-DX", signature=signature, failure=None,
    )  # fmt: skip


def make_config(items: int = 1024) -> LaunchConfig:
    buffer = LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=items)
    return LaunchConfig(
        sample_id=f"s{items}", global_size=(items,), local_size=(64,), args=(buffer,),
        regime=None, strategies=(Strategy.SIMPLE,), seed=0,
    )  # fmt: skip


def write(folder: Path, **changes: object) -> DeviceRef:
    path = folder / "replay.json"
    path.write_text(json.dumps(EXAMPLE | changes))
    ref = choose(f"replay:{path}")
    assert isinstance(ref, DeviceRef)
    return ref


def launcher(ref: DeviceRef, *, name: str = "vadd", items: int = 1024) -> Launcher:
    kernel = make_kernel(name)
    return (
        open_session(ref)
        .load(kernel, open_compiler(ref).compile(kernel))
        .prepare(make_config(items))
    )


def test_recorded_times_come_in_turn(tmp_path: Path) -> None:
    answers = launcher(write(tmp_path))
    assert [answers.launch() for _ in range(3)] == [810, 795, 810]
    assert answers.needs_refill
    assert answers.footprint_bytes == 4096


def test_unknown_configs_follow_the_model_and_repeat(tmp_path: Path) -> None:
    ref = write(tmp_path)
    times = [launcher(ref, items=2048).launch() for _ in range(2)]
    assert times[0] == times[1] == pytest.approx(4000 + 1024, rel=0.01)
    cold = launcher(ref, items=2048)
    cold.flush_cache()
    assert cold.launch() == pytest.approx(1.5 * times[0])


def test_device_record(tmp_path: Path) -> None:
    session = open_session(write(tmp_path))
    assert session.device.device_class == "replay-small"
    assert session.measure_peaks().peak_dram_gbps == 100
    assert len(session.device.device_id) == 20


def test_speed_is_wall_time(tmp_path: Path) -> None:
    slow = launcher(write(tmp_path, speed=1.0, model={"floor_ns": 5e7, "noise": 0}), items=64)
    start = time.monotonic()
    slow.launch()
    assert time.monotonic() - start >= 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not JSON"]),
        ("[]", ["a JSON object"]),
        ('{"spead": 1}', ["spead", "unknown", "speed"]),
        ('{"speed": -1}', ["speed", "at least"]),
        ('{"behaviours": [{"kernel": "x", "action": "sing"}]}', ["behaviours.0.action", "sing"]),
        ('{"timings": [{"kernel": "x"}]}', ["timings.0.global_size"]),
        ('{"device": {"compute_units": 0}}', ["device.compute_units"]),
        ('{"device": {"compute_units": 2147483648}}', ["device.compute_units"]),
        ('{"device": {"max_work_group_size": 9223372036854775808}}', ["max_work_group_size"]),
        ('{"device": {"global_memory_bytes": 1%s}}' % ("0" * 30), ["global_memory_bytes"]),
        ('{"device": {"max_allocation_bytes": 1%s}}' % ("0" * 30), ["max_allocation_bytes"]),
        ('{"device": {"local_memory_bytes": 1%s}}' % ("0" * 30), ["local_memory_bytes"]),
        ('{"device": {"last_level_cache_bytes": 1%s}}' % ("0" * 30), ["last_level_cache_bytes"]),
        ('{"device": {"max_work_item_sizes": [-1, 0, 64]}}', ["max_work_item_sizes.0"]),
        (
            '{"device": {"max_work_item_sizes": [64, 64, 1%s]}}' % ("0" * 30),
            ["max_work_item_sizes"],
        ),
        ('{"device": {"max_work_item_sizes": []}}', ["max_work_item_sizes"]),
        ('{"device": {"max_clock_mhz": 1e308}}', ["max_clock_mhz"]),
        ('{"device": {"platform": "\\ud800"}}', ["half of a surrogate pair"]),
        ('{"model": {"floor_ns": 1e308}}', ["model.floor_ns"]),
        ('{"model": {"ns_per_work_item": 1e308}}', ["model.ns_per_work_item"]),
        ('{"model": {"cold_factor": 1e308}}', ["model.cold_factor"]),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json") as caught:
        choose(f"replay:{path}")
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        choose(f"replay:{tmp_path / 'none.json'}")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_the_count_of_sentinels_is_never_a_link_or_a_fifo(tmp_path: Path, kind: str) -> None:
    ref = write(tmp_path, sentinel_factors=[2.0, 3.0])
    session = open_session(ref)
    first_ns = session.sentinel_ns()
    assert session.sentinel_ns() == first_ns * 1.5
    count, target = tmp_path / "replay.json.sentinels", tmp_path / "target"
    assert count.read_bytes() == b".."
    count.unlink()
    if kind == "link":
        target.write_text("another file\n")
        count.symlink_to(target)
    else:
        os.mkfifo(count)
    with pytest.raises(
        ValueError, match=r"replay\.json\.sentinels is a link or not a regular file"
    ):
        choose(ref.selector)
    with pytest.raises(UnfitFileError, match="is a link or not a regular file"):
        session.sentinel_ns()
    assert kind == "fifo" or target.read_text() == "another file\n"


def test_scripted_failures_are_values(tmp_path: Path) -> None:
    behaviours = [
        {"kernel": "big_*", "action": "out_of_memory"},
        {"kernel": "fault", "action": "fault"},
        {"kernel": "typo", "action": "build_error"},
        {"kernel": "liar", "action": "lie", "factor": 10, "at_config": 0},
    ]
    ref = write(tmp_path, behaviours=behaviours, model={"floor_ns": 100, "ns_per_work_item": 0,
                                                        "noise": 0})  # fmt: skip
    with pytest.raises(DeviceFailure) as caught:
        launcher(ref, name="big_one")
    assert caught.value.failure.code is FailureCode.OUT_OF_MEMORY
    with pytest.raises(DeviceFailure) as caught:
        launcher(ref, name="fault").launch()
    assert caught.value.sticky
    with pytest.raises(DeviceFailure) as caught:
        launcher(ref, name="typo")
    assert caught.value.failure.code is FailureCode.BUILD_ERROR
    assert launcher(ref, name="liar").launch() == 1000
    assert launcher(ref, name="honest").launch() == 100


def test_at_config_and_once(tmp_path: Path) -> None:
    behaviours = [
        {"kernel": "*", "action": "launch_error", "at_config": 1},
        {"kernel": "*", "action": "out_of_memory", "at_config": 2, "once": True},
    ]
    ref = write(tmp_path, behaviours=behaviours)

    def codes() -> list[str]:
        kernel = make_kernel()
        loaded = open_session(ref).load(kernel, open_compiler(ref).compile(kernel))
        seen = []
        for items in (64, 128, 256):
            try:
                loaded.prepare(make_config(items))
                seen.append("ok")
            except DeviceFailure as error:
                seen.append(str(error.failure.code))
        return seen

    assert codes() == ["ok", "launch_error", "out_of_memory"]
    assert codes() == ["ok", "launch_error", "ok"]


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from test_replay import launcher, open_compiler, make_kernel
from workers.device.interface import DeviceRef
ref = DeviceRef(selector={selector!r}, platform="replay", name="x")
if {compile_only}:
    open_compiler(ref).compile(make_kernel())
else:
    print(launcher(ref).launch(), flush=True)
    time.sleep(1)
"""


def run_child(
    ref: DeviceRef, *, compile_only: bool = False, timeout_s: float = 20
) -> tuple[int, str]:
    code = CHILD.format(
        tests=str(Path(__file__).parent), selector=ref.selector, compile_only=compile_only
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.returncode, done.stdout


def test_exit_kills_before_the_result(tmp_path: Path) -> None:
    ref = write(tmp_path, behaviours=[{"kernel": "*", "action": "exit"}])
    assert run_child(ref) == (-signal.SIGSEGV, "")


def test_exit_after_result_kills_behind_it(tmp_path: Path) -> None:
    ref = write(tmp_path, behaviours=[{"kernel": "*", "action": "exit_after_result"}])
    assert run_child(ref) == (-signal.SIGSEGV, "810.0\n")


def test_crash_compile(tmp_path: Path) -> None:
    ref = write(tmp_path, behaviours=[{"kernel": "*", "action": "crash_compile"}])
    assert run_child(ref, compile_only=True) == (-signal.SIGSEGV, "")


@pytest.mark.parametrize(("action", "compile_only"), [("hang", False), ("hang_compile", True)])
def test_hangs_end_by_kill_only(tmp_path: Path, action: str, compile_only: bool) -> None:
    ref = write(tmp_path, behaviours=[{"kernel": "*", "action": action}])
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(ref, compile_only=compile_only, timeout_s=1.5)


# ------------------------------------------------------------------ recorded analyses

VADD_ROW = {
    "kernel": "vadd",
    "analysis": [
        {"position": 0, "constant": 1, "terms": [{"factors": ["global_size_0"], "coefficient": 2}]}
    ],
    "data_dependent": False,
    "index_roles": [
        {"position": 0, "rule": "bounded", "targets": [{"position": 0, "constant": 0, "terms": []}]}
    ],
}


def test_a_recorded_analysis_is_the_answer(tmp_path: Path) -> None:
    analyser = ReplayAnalyser(write(tmp_path, analyses=[VADD_ROW]))
    found = analyser.analyse(make_kernel("vadd"))
    assert found.data_dependent is False
    (extent,) = found.extents
    assert extent.elements({"global_size_0": 100}) == 201
    assert found.index_roles[0].rule.value == "bounded"


def test_without_a_recorded_analysis_the_device_says_that_it_cannot_probe(tmp_path: Path) -> None:
    analyser = ReplayAnalyser(write(tmp_path, analyses=[VADD_ROW]))
    with pytest.raises(DeviceFailure, match="cannot be probed"):
        analyser.analyse(make_kernel("other"))


def test_an_analysis_of_another_kernel_is_not_used(tmp_path: Path) -> None:
    row = {**VADD_ROW, "analysis": [{"position": 9, "constant": 1, "terms": []}]}
    analyser = ReplayAnalyser(write(tmp_path, analyses=[row]))
    with pytest.raises(DeviceFailure, match="of argument 9, but the kernel has 1 arguments"):
        analyser.analyse(make_kernel("vadd"))


@pytest.mark.parametrize(
    "change",
    [
        {"analysis": [{"position": 0, "constant": 1, "terms": [{"factor": "n"}]}]},
        {"index_roles": [{"position": 0, "rule": "shuffled", "targets": []}]},
        {"extents": []},
        {"analysis": [{"position": 2**31, "constant": 1, "terms": []}]},
        {"analysis": [{"position": 0, "constant": 2**70, "terms": []}]},
        {"overflowing_local_sizes": [[2**31]]},
        {"inputs": {"scalars": [{"position": 2**31, "value": "root"}]}},
        {"inputs": {"num_tried": 2**31}},
    ],
)
def test_a_bad_recorded_analysis_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"analyses|the analysis of 'vadd'"):
        write(tmp_path, analyses=[{**VADD_ROW, **change}])

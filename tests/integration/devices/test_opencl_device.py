"""The OpenCL door on a real CPU device: fills, launches, limits, errors, and what kills a child.

Runs on whatever CPU device ``choose("cpu")`` gives; start pytest with OCL_ICD_VENDORS (and, for Intel's
runtime, LD_LIBRARY_PATH) set to try another one.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    Kernel,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
    Timing,
)
from tests.support.reading import read_signatures
from workers.config import TimingConfig
from workers.device.interface import PADDING_BYTES, DeviceFailure, DeviceRef, Program, Session
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.errors import out_of_memory
from workers.device.opencl.freed_memory import FreedMemory
from workers.device.opencl.limits import padded
from workers.device.opencl.session import OpenclSession
from workers.discovery.find import choose
from workers.discovery.opening import open_compiler, open_session
from workers.measure.timing import time_config
from workers.plan.inputs import SCALAR_TYPES, FillKind, fill_spec, reference_bytes, reference_fill

pytestmark = pytest.mark.opencl

GLOBAL, CONSTANT = ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER
LOCAL, SCALAR = ArgumentKind.LOCAL_BUFFER, ArgumentKind.SCALAR
VADD = (Path(__file__).parents[3] / "kernels" / "vadd.cl").read_text(encoding="utf-8")


def arg(
    position: int,
    kind: ArgumentKind,
    scalar_type: str,
    access: Access = Access.NONE,
    width: int = 1,
) -> Argument:
    lanes = 4 if width == 3 else width
    return Argument(
        position=position, name=f"arg{position}", kind=kind, type_name=scalar_type,
        scalar_type=scalar_type, vector_width=width, access=access,
        element_bytes=lanes * SCALAR_TYPES[scalar_type].dtype.itemsize,
    )  # fmt: skip


def make_kernel(
    name: str, source: str, *arguments: Argument, options: str = "", required: tuple[int, ...] | None = None,
    static_local_bytes: int = 0,
) -> Kernel:  # fmt: skip
    signature = Signature(
        arguments=arguments, dims=1, required_local_size=required,
        static_local_bytes=static_local_bytes, static_features={},
    )  # fmt: skip
    return Kernel(
        kernel_id="0" * 20, name=name, source=source, source_sha256="", path="", suite="",
        family_id="", build_options=options, signature=signature, failure=None,
    )  # fmt: skip


def make_config(
    kernel: Kernel, items: int, local: int = 64, *, value: float = 0, **elements: int
) -> LaunchConfig:
    assert kernel.signature is not None
    args = tuple(
        LaunchArgument(position=a.position, kind=a.kind, value=value or items)
        if a.kind is SCALAR
        else LaunchArgument(position=a.position, kind=a.kind, elements=elements.get(a.name, items))
        for a in kernel.signature.arguments
    )
    return LaunchConfig(
        sample_id=f"{items}", global_size=(items,), local_size=(local,), args=args, regime=None,
        strategies=(Strategy.SIMPLE,), seed=7,
    )  # fmt: skip


def vadd() -> Kernel:
    inputs = (arg(position, GLOBAL, "float", Access.READ) for position in (0, 1))
    return make_kernel(
        "vadd", VADD, *inputs, arg(2, GLOBAL, "float", Access.WRITE), arg(3, SCALAR, "int")
    )


@pytest.fixture(scope="module")
def ref() -> DeviceRef:
    chosen = choose("cpu")
    assert isinstance(chosen, DeviceRef), chosen.message()
    return chosen


@pytest.fixture(scope="module")
def session(ref: DeviceRef) -> Iterator[Session]:
    with open_session(ref) as opened:
        yield opened


@pytest.fixture(scope="module")
def compiled(ref: DeviceRef) -> Program:
    return open_compiler(ref).compile(vadd())


def failure_of(caught: pytest.ExceptionInfo[DeviceFailure]) -> Failure:
    return caught.value.failure


@pytest.mark.parametrize("kind", list(FillKind))
def test_the_device_fills_what_the_host_says(session: Session, kind: FillKind) -> None:
    source = "__kernel void f(__global uchar *o) { if (get_global_size(0) == 0) o[0] = 1; }"
    scalar_type = next(name for name, scalar in SCALAR_TYPES.items() if scalar.fill_kind is kind)
    kernel = make_kernel("f", source, arg(0, GLOBAL, scalar_type, Access.READ))
    assert kernel.signature is not None
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert isinstance(loaded, OpenclLoadedKernel)
    for count in (64, 128, 100_032):
        for width in (1, 63, count):
            config = make_config(kernel, count, arg0=width)
            loaded.prepare(config)
            expected = reference_fill(
                fill_spec(kernel.signature.arguments[0], elements=width, seed=config.seed)
            ).tobytes()
            assert loaded.read_buffer(0, len(expected)) == expected
    loaded.release()


UNTOUCHED = "{ if (get_global_size(0) == 0) *(__global uchar *)o = 1; }"
ITEM = """typedef struct { char tag; float3 at; struct { short s[3]; double w; } in[2]; uchar c; half h;
    ulong last; bool b; uint index; } item;
"""


@pytest.mark.parametrize("rule", list(ContentsRule))
@pytest.mark.parametrize(
    "scalar_type",
    ["char", "uchar", "ushort", "int", "uint", "long", "float", "double", "half", "bool"],
)
def test_content_rules_on_the_device(
    session: Session, rule: ContentsRule, scalar_type: str
) -> None:
    kernel = make_kernel(
        "f", f"__kernel void f(__global uchar *o) {UNTOUCHED}", arg(0, GLOBAL, scalar_type)
    )
    assert kernel.signature is not None
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert isinstance(loaded, OpenclLoadedKernel)
    for elements, limit in ((1, 1), (63, 1000), (4096, 7), (4097, 2**31), (1000, 2**32), (5, 130)):
        contents = Contents(rule=rule, limit=limit)
        loaded.prepare(with_contents(make_config(kernel, 64, arg0=elements), contents))
        expected = reference_bytes(
            kernel.signature.arguments[0], elements=elements, seed=7, contents=contents
        ).tobytes()
        assert loaded.read_buffer(0, len(expected)) == expected
    loaded.release()


@pytest.mark.parametrize("rule", [None, *ContentsRule])
def test_structures_are_filled_member_by_member(
    session: Session, rule: ContentsRule | None
) -> None:
    source = f"{ITEM}__kernel void f(__global item *o) {UNTOUCHED}"
    (named,) = read_signatures(source)
    assert named.signature is not None
    (argument,) = named.signature.arguments
    assert len(argument.leaves) > 8
    kernel = make_kernel("f", source, argument)
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert isinstance(loaded, OpenclLoadedKernel)
    contents = Contents(rule=rule, limit=1000) if rule else None
    is_member = np.zeros(argument.element_bytes, np.bool_)
    for leaf in argument.leaves:
        width = SCALAR_TYPES[leaf.scalar_type].dtype.itemsize * leaf.count
        assert not is_member[leaf.offset_bytes : leaf.offset_bytes + width].any(), "they overlap"
        is_member[leaf.offset_bytes : leaf.offset_bytes + width] = True
    assert not is_member.all(), "the structure has padding"
    for elements in (1, 3, 1001):
        loaded.prepare(with_contents(make_config(kernel, 64, o=elements), contents))
        expected = reference_bytes(argument, elements=elements, seed=7, contents=contents)
        found = np.frombuffer(loaded.read_buffer(0, len(expected)), np.uint8)
        mask = np.tile(is_member, elements)
        assert (found[mask] == expected[mask]).all()
    loaded.release()


def with_contents(config: LaunchConfig, contents: Contents | None) -> LaunchConfig:
    args = tuple(dataclasses.replace(one, contents=contents) for one in config.args)
    return dataclasses.replace(config, args=args)


def test_the_record_says_what_a_plan_needs(session: Session) -> None:
    device = session.device
    assert device.compute_units == os.cpu_count()
    assert device.device_class.endswith(f"-{device.compute_units}cu")
    assert "pthread" not in device.device_class
    assert device.last_level_cache_bytes >= 2**20
    assert device.max_allocation_bytes <= device.global_memory_bytes
    assert device.timer_step_ns is None


def affinities() -> dict[int, set[int]]:
    """Return the processors that each thread of this process may use."""
    return {int(name): os.sched_getaffinity(int(name)) for name in os.listdir("/proc/self/task")}


def test_peaks_are_plausible_and_quick(session: Session) -> None:
    before = affinities()
    start = time.monotonic()
    device = session.measure_peaks()
    assert time.monotonic() - start < 30, "beside other tests; alone, a slow test wants 10 s"
    assert device.peak_dram_gbps is not None
    assert 1 < device.peak_dram_gbps < 1000
    assert device.peak_l2_gbps is not None
    assert device.peak_l2_gbps > device.peak_dram_gbps / 2
    assert device.peak_fp32_gflops is not None
    assert device.peak_fp32_gflops > 1
    assert device.launch_floor_ns is not None
    assert device.launch_floor_ns < 1e6
    assert device.timer_step_ns is not None
    assert device == session.device
    spreads = [device.peak_dram_spread, device.peak_l2_spread, device.peak_fp32_spread]
    assert all(one is not None and 0 <= one < 1 for one in spreads)
    after = affinities()
    kept = {thread: after.get(thread, own) for thread, own in before.items()}
    assert kept == before, "Intel's runtime pins its threads in some of its starts"


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_busy_process_beside_us_does_not_halve_the_peaks(session: Session) -> None:
    """On two cores three of eight starts gave 117 instead of 231 GFLOP/s before."""
    start = time.monotonic()
    alone = session.measure_peaks()
    assert time.monotonic() - start < 10
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = [session.measure_peaks() for _ in range(3)]
    finally:
        busy.kill()
        busy.wait()
    assert alone.peak_fp32_gflops is not None
    for device in beside:
        assert device.peak_fp32_gflops is not None
        assert device.peak_fp32_gflops > 0.75 * alone.peak_fp32_gflops


def test_binaries_load_and_their_results_are_right(session: Session, compiled: Program) -> None:
    assert compiled.binary
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    assert kernel.signature is not None
    for items in (4096, 64, 16384):  # grows, shrinks into the same buffers, grows
        launcher = loaded.prepare(make_config(kernel, items))
        assert launcher.launch() > 0
        a, b = (
            reference_fill(fill_spec(kernel.signature.arguments[p], elements=items, seed=7))
            for p in (0, 1)
        )
        assert loaded.read_buffer(2, items * 4) == (a + b).tobytes()
        assert loaded.read_buffer(2, items * 4 + 4096)[items * 4 :] == bytes(4096)
        assert launcher.footprint_bytes == 3 * 4 * items
        assert not launcher.needs_refill
    loaded.release()


def test_what_is_freed_is_waited_for_before_a_launch_and_at_a_task_s_end(
    session: Session, compiled: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    freed = FreedMemory(2.0**20, clock=lambda: 0.0, sleep=waits_s.append)
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    monkeypatch.setattr(loaded.queue, "freed", freed)
    loaded.prepare(make_config(kernel, 4096)).launch()
    assert waits_s == []
    launcher = loaded.prepare(make_config(kernel, 2**18))  # grows: three buffers are freed
    assert waits_s == []
    assert launcher.launch() > 0
    assert waits_s == [pytest.approx(3 * padded(4 * 4096) / 2**20)]
    launcher.launch()
    assert len(waits_s) == 1
    loaded.release()
    assert waits_s[1:] == [pytest.approx(3 * padded(4 * 2**18) / 2**20)]


def test_launches_that_are_not_waited_for_do_the_work_of_one(
    session: Session, compiled: Program
) -> None:
    source = "__kernel void f(__global float *a) { a[get_global_id(0)] += 1.0f; }"
    kernel = make_kernel("f", source, arg(0, GLOBAL, "float", Access.READ_WRITE))
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert isinstance(loaded, OpenclLoadedKernel)
    assert kernel.signature is not None
    launcher = loaded.prepare(make_config(kernel, 4096, arg0=4096))
    times_ns = launcher.launch_each(5, refill_seed=7)
    assert len(times_ns) <= 5
    assert all(one > 0 for one in times_ns)
    spec = fill_spec(kernel.signature.arguments[0], elements=4096, seed=7)
    expected = reference_fill(spec) + np.float32(1)
    assert loaded.read_buffer(0, 4 * 4096) == expected.tobytes()
    assert launcher.num_at_once(1000.0) == 1, "a CPU device lags behind"
    loaded.release()


def test_a_gpu_gets_padding_around_buffers_whose_access_range_is_not_known(
    session: Session, compiled: Program
) -> None:
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    config = make_config(kernel, 4096)
    loaded.reserve([config], with_padding=True)
    assert all(buffer.size < PADDING_BYTES for buffer in loaded._buffers.values())
    loaded.release()
    loaded.queue.is_gpu = True
    try:
        loaded.reserve([config], with_padding=True)
        num_bytes = 4 * 4096 + 4096
        sizes = [buffer.size for buffer in loaded._buffers.values()]
        assert sizes == [num_bytes + PADDING_BYTES] * 3
        assert loaded.prepare(config).launch() > 0
        found = loaded.read_buffer(2, num_bytes + PADDING_BYTES)
        assert found.count(0, 4 * 4096) == 4096 + PADDING_BYTES
    finally:
        loaded.queue.is_gpu = False
        loaded.release()


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize(
    ("start", "num_bytes"), [(0, 1), (0, 2500), (16, 31), (100, 16), (100, 2500)]
)
def test_exactly_the_bytes_asked_for_are_set(
    session: Session, monkeypatch: pytest.MonkeyPatch, start: int, num_bytes: int, is_gpu: bool
) -> None:
    assert isinstance(session, OpenclSession)
    queue = session._queue
    monkeypatch.setattr(queue, "is_gpu", is_gpu)
    buffer = queue.allocate(4096)
    queue.fill_bytes(buffer, 1, num_bytes=4096)
    queue.fill_bytes(buffer, 167, start=start, num_bytes=num_bytes)
    rest = 4096 - start - num_bytes
    assert (
        queue.read(buffer, 4096)
        == bytes([1]) * start + bytes([167]) * num_bytes + bytes([1]) * rest
    )
    buffer.release()


def test_what_is_read_before_a_padded_buffer_is_zero(session: Session) -> None:
    source = "__kernel void f(__global int *a, __global int *b) { int i = get_global_id(0); b[i] = a[i - 64]; }"
    arguments = [arg(0, GLOBAL, "int", Access.READ), arg(1, GLOBAL, "int", Access.WRITE)]
    kernel = make_kernel("f", source, *arguments)
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert isinstance(loaded, OpenclLoadedKernel)
    config = make_config(kernel, 256, arg0=256, arg1=256)
    loaded.queue.is_gpu = True
    try:
        loaded.reserve([config], with_padding=True)
        assert loaded.prepare(config).launch() > 0
        assert not any(loaded.read_buffer(1, 4 * 64))
        assert loaded.read_buffer(1, 4 * 256)[4 * 64 :] == loaded.read_buffer(0, 4 * 192)
    finally:
        loaded.queue.is_gpu = False
        loaded.release()


def test_what_cannot_be_had_ahead_is_had_in_the_turn(
    session: Session, compiled: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    config, queue = make_config(kernel, 4096), loaded.queue
    asked: list[int] = []

    def make_resident(buffers: Sequence[object]) -> None:
        asked.append(len(buffers))
        if len(asked) == 1:
            raise out_of_memory("another process has it")

    monkeypatch.setattr(queue, "make_resident", make_resident)
    loaded.reserve([config], with_padding=False, ahead=True)
    assert loaded._buffers == {}
    loaded.reserve([config], with_padding=False)
    loaded.reserve([config], with_padding=False)
    assert asked == [3, 3], "a third call finds them reserved"
    assert loaded.prepare(config).launch() > 0
    loaded.release()
    share = queue.device.global_memory_bytes // 3
    if share <= queue.device.max_allocation_bytes:
        loaded.reserve([make_config(kernel, 64, arg0=share // 4)], with_padding=False, ahead=True)
        assert loaded._buffers == {}, "too much to hold while another process has the device"


def test_reserved_buffers_serve_every_config(session: Session, compiled: Program) -> None:
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    configs = [make_config(kernel, items) for items in (64, 16384, 4096)]
    impossible = make_config(kernel, 64, arg0=2**40)
    loaded.reserve([*configs, impossible], with_padding=False)
    reserved = dict(loaded._buffers)
    assert set(reserved) == {0, 1, 2}
    assert kernel.signature is not None
    for config in configs:
        launcher = loaded.prepare(config)
        launcher.launch()
        (items,) = config.global_size
        a, b = (
            reference_fill(fill_spec(kernel.signature.arguments[p], elements=items, seed=7))
            for p in (0, 1)
        )
        assert loaded.read_buffer(2, items * 4 + 4096) == (a + b).tobytes() + bytes(4096)
    assert all(loaded._buffers[position] is buffer for position, buffer in reserved.items())
    loaded.release()


def test_what_does_not_fit_all_together_is_not_reserved(
    session: Session, compiled: Program
) -> None:
    kernel, device = vadd(), session.device
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    most = device.max_allocation_bytes // 4 - 4096
    each = min(most, int(device.global_memory_bytes * 0.6) // 4 // 3)
    loaded.reserve([make_config(kernel, 64, arg0=each, arg1=each, arg2=each)], with_padding=True)
    expected = 12 * each <= device.global_memory_bytes * 0.5
    assert bool(loaded._buffers) is expected
    assert loaded.prepare(make_config(kernel, 64)).launch() > 0
    loaded.release()


def test_source_is_built_where_there_is_no_binary(session: Session) -> None:
    kernel = vadd()
    loaded = session.load(kernel, Program(binary=b"", options="", log="", seconds=0))
    assert loaded.prepare(make_config(kernel, 64)).launch() > 0
    loaded.release()


def test_a_config_is_timed_and_checked(session: Session, compiled: Program) -> None:
    kernel = vadd()
    timed = time_config(
        session.load(kernel, compiled), make_config(kernel, 65536), TimingConfig(max_readings=10).rule(),
        session.device, check_payload=True, clock=time.monotonic,
    )  # fmt: skip
    assert isinstance(timed.outcome, Timing), timed
    checks = timed.outcome.checks
    assert (checks.writes_output, checks.deterministic, checks.input_sensitive) == (True,) * 3
    assert len(timed.outcome.cold_ns) == 3
    assert 5 <= len(timed.outcome.time_ns) <= 10


def test_read_write_buffers_are_restored_before_each_launch(
    session: Session, ref: DeviceRef
) -> None:
    source = "__kernel void twice(__global float *a) { a[get_global_id(0)] *= 2.0f; }"
    kernel = make_kernel("twice", source, arg(0, GLOBAL, "float", Access.READ_WRITE))
    loaded = session.load(kernel, open_compiler(ref).compile(kernel))
    launcher = loaded.prepare(make_config(kernel, 256))
    assert launcher.needs_refill
    launcher.launch()
    once = launcher.output_digest()
    launcher.launch()
    assert launcher.output_digest() != once
    launcher.refill(seed=7)
    launcher.launch()
    assert launcher.output_digest() == once
    loaded.release()


def test_every_kind_of_argument_arrives(session: Session, ref: DeviceRef) -> None:
    source = """
    __kernel void mixed(__global float *out, __constant float *c, __local float *tile, float4 v,
                        uchar b, long n, __global const uint *index)
    {
        int i = get_global_id(0), l = get_local_id(0);
        tile[l] = c[i % 4];
        barrier(CLK_LOCAL_MEM_FENCE);
        out[i] = tile[l] + v.x + v.w + b + (float)n + index[i];
    }"""
    kernel = make_kernel(
        "mixed", source, arg(0, GLOBAL, "float", Access.WRITE), arg(1, CONSTANT, "float", Access.READ),
        arg(2, LOCAL, "float"), arg(3, SCALAR, "float", width=4), arg(4, SCALAR, "uchar"),
        arg(5, SCALAR, "long"), arg(6, GLOBAL, "uint", Access.READ),
    )  # fmt: skip
    loaded = session.load(kernel, open_compiler(ref).compile(kernel))
    loaded.prepare(make_config(kernel, 128, value=3, arg1=4, arg2=64)).launch()
    assert kernel.signature is not None
    constants = reference_fill(fill_spec(kernel.signature.arguments[1], elements=4, seed=7))
    index = reference_fill(fill_spec(kernel.signature.arguments[6], elements=128, seed=7))
    expected = np.tile(constants, 32) + np.float32(12) + index.astype(np.float32)
    got = np.frombuffer(loaded.read_buffer(0, 512), np.float32)  # type: ignore[attr-defined]
    assert np.allclose(got, expected)
    loaded.release()


def test_a_stale_launcher_is_our_own_mistake(session: Session, compiled: Program) -> None:
    loaded = session.load(vadd(), compiled)
    old = loaded.prepare(make_config(vadd(), 64))
    loaded.prepare(make_config(vadd(), 128))
    with pytest.raises(RuntimeError, match="another config"):
        old.launch()
    loaded.release()


def test_a_syntax_error_has_its_log(ref: DeviceRef) -> None:
    with pytest.raises(DeviceFailure) as caught:
        open_compiler(ref).compile(make_kernel("bad", "__kernel void bad() { nonsense here; }"))
    assert failure_of(caught).code is FailureCode.BUILD_ERROR
    assert failure_of(caught).stage is Stage.BUILD
    assert "nonsense" in failure_of(caught).detail
    assert not caught.value.sticky


def test_a_kernel_that_the_source_lacks_is_a_build_error(ref: DeviceRef) -> None:
    with pytest.raises(DeviceFailure) as caught:
        open_compiler(ref).compile(make_kernel("absent", VADD))
    assert failure_of(caught).code is FailureCode.BUILD_ERROR


def test_build_options_reach_the_compiler(ref: DeviceRef) -> None:
    source = "__kernel void f(__global float *o) { o[0] = VALUE; }"
    open_compiler(ref).compile(make_kernel("f", source, options="-D VALUE=3.0f"))
    for options in ("", "-D VALUE='3.0f"):
        with pytest.raises(DeviceFailure) as caught:
            open_compiler(ref).compile(make_kernel("f", source, options=options))
        assert failure_of(caught).code is FailureCode.BUILD_ERROR


@pytest.mark.parametrize(
    ("items", "local", "elements", "code", "words"),
    [
        (100, 64, {}, FailureCode.LAUNCH_ERROR, "multiple"),
        (0, 64, {}, FailureCode.LAUNCH_ERROR, "multiple"),
        (2**20, 2**20, {}, FailureCode.LAUNCH_ERROR, "CL_KERNEL_WORK_GROUP_SIZE"),
        (64, 64, {"arg0": 2**34}, FailureCode.OUT_OF_MEMORY, "allows at most"),
    ],
)
def test_impossible_launches_are_refused(
    session: Session, compiled: Program, items: int, local: int, elements: dict[str, int],
    code: FailureCode, words: str,
) -> None:  # fmt: skip
    with pytest.raises(DeviceFailure) as caught:
        session.load(vadd(), compiled).prepare(make_config(vadd(), items, local, **elements))
    assert failure_of(caught).code is code
    assert words in failure_of(caught).detail
    assert not caught.value.sticky


@pytest.mark.parametrize("static", [True, False])
def test_too_much_local_memory_is_refused_before_the_driver_accepts_it(
    session: Session, ref: DeviceRef, static: bool
) -> None:
    source = "__kernel void f(__global float *o, __local float *t) { t[0] = 1; o[0] = t[0]; }"
    arguments = (arg(0, GLOBAL, "float", Access.WRITE), arg(1, LOCAL, "float"))
    kernel = make_kernel("f", source, *arguments, static_local_bytes=8 * 2**20 if static else 0)
    loaded = session.load(kernel, open_compiler(ref).compile(kernel))
    with pytest.raises(DeviceFailure) as caught:
        loaded.prepare(make_config(kernel, 64, arg1=1 if static else 2 * 2**20))
    assert failure_of(caught).code is FailureCode.OUT_OF_MEMORY
    assert "local memory" in failure_of(caught).detail


def test_a_required_local_size_is_explained(session: Session, ref: DeviceRef) -> None:
    source = """__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
    void f(__global float *o) { o[get_global_id(0)] = 1; }"""
    kernel = make_kernel("f", source, arg(0, GLOBAL, "float", Access.WRITE), required=(16, 1, 1))
    loaded = session.load(kernel, open_compiler(ref).compile(kernel))
    assert loaded.prepare(make_config(kernel, 64, 16)).launch() > 0
    with pytest.raises(DeviceFailure) as caught:
        loaded.prepare(make_config(kernel, 64, 32))
    assert failure_of(caught).code is FailureCode.LAUNCH_ERROR
    assert "requires the local size" in failure_of(caught).detail


def test_the_wrong_number_of_arguments_is_refused(session: Session, compiled: Program) -> None:
    config = make_config(make_kernel("vadd", VADD), 64)
    with pytest.raises(DeviceFailure, match="4 arguments"):
        session.load(vadd(), compiled).prepare(config)


def test_the_session_can_be_kept_busy_and_watched(session: Session) -> None:
    start = time.monotonic()
    session.spin_up(20)
    assert time.monotonic() - start >= 0.02
    assert session.sentinel_ns() > 0


CHILD = """
import os, sys, time
sys.path.insert(0, {tests!r})
from test_opencl_device import *
ref = DeviceRef(selector={ref.selector!r}, platform={ref.platform!r}, name={ref.name!r})
kernel = make_kernel("f", {source!r}, arg(0, GLOBAL, "float", Access.READ_WRITE))
session = open_session(ref)
launcher = session.load(kernel, open_compiler(ref).compile(kernel)).prepare(make_config(kernel, 64))
print(os.environ["POCL_CACHE_DIR"], flush=True)
launcher.launch()
print("result", flush=True)
"""


def start_child(ref: DeviceRef, source: str) -> subprocess.Popen[str]:
    code = CHILD.format(tests=str(Path(__file__).parent), ref=ref, source=source)
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **ref.environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_an_endless_kernel_ends_by_sigkill_at_once(ref: DeviceRef) -> None:
    source = "__kernel void f(__global volatile float *o) { while (o[0] < 2.0f) o[1] += 0.0f; }"
    with start_child(ref, source) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        time.sleep(0.5)
        assert child.poll() is None
        start = time.monotonic()
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=10) == -signal.SIGKILL
        assert time.monotonic() - start < 2
        assert "result" not in child.stdout.read()


def test_a_far_write_kills_the_child(ref: DeviceRef) -> None:
    source = "__kernel void f(__global float *o) { o[get_global_id(0) * 400000000UL + 400000000UL] = 1; }"
    with start_child(ref, source) as child:
        assert child.stdout is not None
        printed = child.stdout.read()
        assert child.wait(timeout=60) == -signal.SIGSEGV
        assert "result" not in printed


def test_the_cache_folder_of_a_killed_child_is_swept_by_the_next(ref: DeviceRef) -> None:
    good = "__kernel void f(__global float *o) { o[get_global_id(0)] += 1; }"
    endless = "__kernel void f(__global volatile float *o) { while (o[0] < 2.0f) o[1] += 0.0f; }"
    with start_child(ref, endless) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        child.kill()
    assert folder.exists()
    with start_child(ref, good) as child:
        assert child.stdout is not None
        own, result = child.stdout.read().split()
        assert child.wait(timeout=60) == 0
    assert result == "result"
    assert not folder.exists()
    assert not Path(own).exists()


def test_what_a_larger_config_left_behind_a_buffer_is_cleared(
    session: Session, compiled: Program
) -> None:
    """A kernel that reaches further than planned must find the same there, whatever ran before."""
    kernel = vadd()
    loaded = session.load(kernel, compiled)
    assert isinstance(loaded, OpenclLoadedKernel)
    large, small = make_config(kernel, 2**18), make_config(kernel, 64)
    for configs in ((large, small), (small, make_config(kernel, 2**14), small)):
        loaded.reserve([large], with_padding=False)
        for config in configs:
            assert loaded.prepare(config).launch() > 0
        for position in (0, 1, 2):
            found = loaded.read_buffer(position, 4 * 2**18)
            assert any(found[: 4 * 64])
            assert not any(found[4 * 64 :])
        loaded.release()

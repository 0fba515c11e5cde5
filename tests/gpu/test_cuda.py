"""The CUDA door on a real NVIDIA GPU: resources, the PTX's translation launch by launch, event times.

Signatures are written out, so that the host needs no libclang: pyopencl, numpy and pycuda are enough.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device.cuda_side import cuda_side, outputs_equal
from llmperf_common.builds import KernelResources
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
from workers.device.cuda.driver import CudaContext
from workers.device.cuda.kernel_resources import ResourceReader
from workers.device.cuda.launcher import CudaError
from workers.device.cuda.ptxas_log import notes_on
from workers.device.interface import Compiler, DeviceRef
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.session import OpenclSession
from workers.discovery.opening import open_compiler
from workers.plan.inputs import SCALAR_TYPES

pytestmark = pytest.mark.gpu

GLOBAL, CONSTANT = ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER
LOCAL, SCALAR = ArgumentKind.LOCAL_BUFFER, ArgumentKind.SCALAR
READ, WRITE, BOTH = Access.READ, Access.WRITE, Access.READ_WRITE
ITEMS = 4096


def arg(
    kind: ArgumentKind, scalar_type: str, access: Access = Access.NONE, width: int = 1
) -> Argument:
    """One argument; its position and name are set by ``kernel``."""
    return Argument(
        position=0, name="", kind=kind, type_name=scalar_type, scalar_type=scalar_type, vector_width=width,
        access=access, element_bytes=width * SCALAR_TYPES[scalar_type].dtype.itemsize,
    )  # fmt: skip


def kernel(
    name: str,
    source: str,
    *arguments: Argument,
    dims: int = 1,
    required: tuple[int, int, int] | None = None,
) -> Kernel:
    numbered = tuple(
        dataclasses.replace(one, position=number, name=f"arg{number}")
        for number, one in enumerate(arguments)
    )
    signature = Signature(
        arguments=numbered, dims=dims, required_local_size=required, static_local_bytes=0, static_features={}
    )  # fmt: skip
    return Kernel(
        kernel_id="0" * 20, name=name, source=source, source_sha256="", path="", suite="", family_id="",
        build_options="", signature=signature, failure=None,
    )  # fmt: skip


VADD = kernel(
    "vadd",
    "__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n) {"
    " int i = get_global_id(0); if (i < n) c[i] = a[i] + b[i]; }",
    arg(GLOBAL, "float", READ), arg(GLOBAL, "float", READ), arg(GLOBAL, "float", WRITE), arg(SCALAR, "int"),
)  # fmt: skip
IDS = kernel(
    "ids",
    "__kernel void ids(__global uint *o) { size_t i = get_global_id(0);"
    " o[i] = get_group_id(0) + 1000 * get_num_groups(0) + 7 * get_global_size(0) + 31 * get_local_size(0)"
    " + 101 * get_local_id(0) + 1009 * get_global_offset(0) + 100003 * get_work_dim() + 13 * i; }",
    arg(GLOBAL, "uint", WRITE),
)
IDS_3D = kernel(
    "ids3",
    "__kernel void ids3(__global uint *o) {"
    " size_t i = get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));"
    " uint v = get_work_dim(); for (uint d = 0; d < 3; d++) v = v * 33 + get_group_id(d) + 5 * get_num_groups(d)"
    " + 11 * get_local_id(d) + 17 * get_global_offset(d); o[i] = v; }",
    arg(GLOBAL, "uint", WRITE), dims=3,
)  # fmt: skip
LOCALS = kernel(
    "locals",
    "__kernel void locals(__global const float *a, __local float *x, char k, __local double *y, __global float *o) {"
    " __local float own[256]; uint l = get_local_id(0), n = get_local_size(0);"
    " size_t i = get_global_id(0); x[l] = a[i]; y[l] = 2 * a[i]; own[l] = 3 * a[i] + k;"
    " barrier(CLK_LOCAL_MEM_FENCE); o[i] = x[n - 1 - l] + (float)y[(l + 1) % n] + own[(l + 7) % n]; }",
    arg(GLOBAL, "float", READ), arg(LOCAL, "float"), arg(SCALAR, "char"), arg(LOCAL, "double"),
    arg(GLOBAL, "float", WRITE),
)  # fmt: skip
VECTORS = kernel(
    "vectors",
    "__kernel void vectors(char c, float4 v, short s, __global float4 *o) {"
    " size_t i = get_global_id(0); o[i] = v * (float)(i % 7) + (float)(c + s); }",
    arg(SCALAR, "char"), arg(SCALAR, "float", width=4), arg(SCALAR, "short"), arg(GLOBAL, "float", WRITE, 4),
)  # fmt: skip
CONSTANTS = kernel(
    "constants",
    "__kernel void constants(__constant float *t, __global float *o) {"
    " size_t i = get_global_id(0); o[i] = t[i % 64] + t[3]; }",
    arg(CONSTANT, "float", READ), arg(GLOBAL, "float", WRITE),
)  # fmt: skip
TABLE = kernel(
    "table",
    "__constant int t[8] = {3, 1, 4, 1, 5, 9, 2, 6};"
    "__kernel void table(__global int *a) { size_t i = get_global_id(0); a[i] = t[a[i] & 7]; }",
    arg(GLOBAL, "int", BOTH),
)
SPILLS = kernel(
    "spills",
    "__attribute__((reqd_work_group_size(1024, 1, 1)))"
    "__kernel void spills(__global const float *a, __global float *o) { size_t i = get_global_id(0), n = get_global_size(0);"
    " float v[128];\n#pragma unroll\nfor (int k = 0; k < 128; k++) v[k] = a[(i * 131 + k * 17) % n];"
    "\nfor (int t = 0; t < 8; t++) {\n#pragma unroll\nfor (int k = 0; k < 128; k++) v[k] = fma(0.25f * v[k], v[(k * 37 + 11) & 127], 0.5f * v[(k + 64) & 127]); }"
    " float s = 0;\n#pragma unroll\nfor (int k = 0; k < 128; k++) s += v[k] * (k + 1); o[i] = s; }",
    arg(GLOBAL, "float", READ), arg(GLOBAL, "float", WRITE), required=(1024, 1, 1),
)  # fmt: skip
CASES = {one.name: one for one in (VADD, IDS, IDS_3D, LOCALS, VECTORS, CONSTANTS, TABLE, SPILLS)}


def config_of(
    one: Kernel, items: int = ITEMS, shape: tuple[int, ...] | None = None
) -> LaunchConfig:
    assert one.signature is not None
    local = shape or ((1024,) if one is SPILLS else (8, 4, 2) if one is IDS_3D else (256,))
    total = (items // 256, 16, 16) if one is IDS_3D else (items,)
    args = tuple(
        LaunchArgument(position=a.position, kind=a.kind, value=items if a.scalar_type == "int" else 5)
        if a.kind is SCALAR
        else LaunchArgument(
            position=a.position, kind=a.kind, elements={LOCAL: local[0], CONSTANT: 64}.get(a.kind, items)
        )
        for a in one.signature.arguments
    )  # fmt: skip
    return LaunchConfig(
        sample_id="", global_size=total, local_size=local, args=args, regime=None,
        strategies=(Strategy.SIMPLE,), seed=7,
    )  # fmt: skip


@pytest.fixture(scope="module")
def compiler(ref: DeviceRef) -> Compiler:
    return open_compiler(ref)


@pytest.fixture(scope="module")
def context(session: OpenclSession) -> Iterator[CudaContext]:
    try:
        opened = CudaContext(session.device.device_uuid)
    except CudaError as error:
        pytest.skip(f"no CUDA context: {error}")
    with opened:
        yield opened


def loaded_by(session: OpenclSession, compiler: Compiler, one: Kernel) -> OpenclLoadedKernel:
    return session.load(one, compiler.compile(one))


@pytest.mark.parametrize("name", sorted(CASES))
def test_cuda_leaves_what_opencl_leaves(
    name: str, session: OpenclSession, compiler: Compiler, context: CudaContext
) -> None:
    one = CASES[name]
    program = compiler.compile(one)
    loaded = session.load(one, program)
    config = config_of(one)
    side = cuda_side(context, one, program, config)
    assert outputs_equal(context, one, loaded, side, config)
    loaded.release()


def test_what_a_kernel_asks_about_the_launch_is_right(
    compiler: Compiler, context: CudaContext
) -> None:
    config = config_of(IDS)
    side = cuda_side(context, IDS, compiler.compile(IDS), config)
    side.launch.enqueue()
    context.synchronize()
    i = np.arange(ITEMS, dtype=np.uint32)
    groups = ITEMS // 256
    wanted = i // 256 + 1000 * groups + 7 * ITEMS + 31 * 256 + 101 * (i % 256) + 100003 + 13 * i
    found = np.frombuffer(side.buffers[0].read(4 * ITEMS), np.uint32)
    assert np.array_equal(found, wanted.astype(np.uint32))


def test_resources_of_a_simple_kernel(compiler: Compiler, context: CudaContext) -> None:
    found = context.resources(compiler.compile(VADD).binary, "vadd", work_dim=1)
    assert 4 <= found.registers <= 32
    assert (found.spill_bytes, found.local_bytes, found.shared_bytes) == (0, 0, 0)
    assert found.max_work_group_size >= 256
    assert found.occupancy_work_group_size == 256
    assert found.occupancy == 1.0
    assert 0 < found.seconds < 10


def test_resources_of_a_kernel_that_spills(compiler: Compiler, context: CudaContext) -> None:
    """1,024 work-items of a required work-group share 65,536 registers: 64 each, for 128 live values."""
    found = context.resources(
        compiler.compile(SPILLS).binary, "spills", work_dim=1, work_group_size=1024
    )
    assert found.registers <= 64
    assert found.spill_bytes is not None
    assert found.spill_bytes > 0
    assert found.local_bytes > 0
    assert found.max_work_group_size == 1024
    assert found.occupancy is not None
    assert found.occupancy >= 0.5


def test_static_shared_memory_is_counted(compiler: Compiler, context: CudaContext) -> None:
    found = context.resources(compiler.compile(LOCALS).binary, "locals", work_dim=1)
    assert found.shared_bytes == 4 * 256


def test_the_compiler_speaks_of_the_same_kernel_twice(
    compiler: Compiler, context: CudaContext
) -> None:
    """The driver says nothing about what it has in its cache."""
    binary = compiler.compile(VADD).binary
    found = [context.resources(binary, "vadd", work_dim=1).spill_bytes for _ in range(2)]
    assert found == [0, 0]


def test_opencls_own_compiler_says_about_the_same(compiler: Compiler, context: CudaContext) -> None:
    """Its back end is not the driver's ptxas: on an H200 vadd took 18 registers, and 17 by the second compilation."""
    for one in (VADD, LOCALS, SPILLS):
        found = context.resources(compiler.compile(one).binary, one.name, work_dim=1)
        talking = dataclasses.replace(one, build_options="-cl-nv-verbose")
        told = notes_on(compiler.compile(talking).log, one.name)
        if told.registers is None:
            pytest.skip("-cl-nv-verbose says nothing on this driver")
        assert abs(found.registers - told.registers) <= 4
        assert bool(found.spill_bytes) == bool(told.spill_store_bytes)


def test_the_multiprocessor_is_one_whose_rules_are_known(context: CudaContext) -> None:
    sm = context.multiprocessor
    if sm.compute_capability == (9, 0):
        assert (sm.max_work_items, sm.max_work_groups, sm.registers) == (2048, 32, 65536)
        assert (sm.shared_bytes, sm.reserved_shared_bytes) == (233472, 1024)
    assert sm.warp_size == 32


@pytest.mark.parametrize(
    ("binary", "why"),
    [
        (b"\x7fELF", "no PTX"),
        (b".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { nonsense; }\0", "cuModuleLoadDataEx"),
        (b".version 99.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\0", "cuModuleLoadDataEx"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_is_told_and_harms_nothing(
    binary: bytes, why: str, compiler: Compiler, context: CudaContext
) -> None:
    with pytest.raises(CudaError) as caught:
        context.resources(binary, "k", work_dim=1)
    assert why in str(caught.value) or "UnicodeDecodeError" in str(caught.value)
    assert context.resources(compiler.compile(VADD).binary, "vadd", work_dim=1).registers > 0


def test_the_reader_of_compile_children(ref: DeviceRef, compiler: Compiler) -> None:
    binary = compiler.compile(VADD).binary
    with ResourceReader(ref) as reader:
        found = reader.read(VADD, binary, limit_s=60)
        if isinstance(found, str):
            pytest.skip(f"no CUDA context: {found}")
        assert isinstance(found, KernelResources)
        assert found.occupancy == 1.0
        assert "no PTX" in str(reader.read(VADD, b"?", limit_s=60))


def test_a_gpu_that_is_not_there(context: CudaContext) -> None:
    with pytest.raises(CudaError, match="sees no GPU"):
        CudaContext("00000000-0000-0000-0000-000000000001")
    context.synchronize()


def test_event_times_agree(
    session: OpenclSession, compiler: Compiler, context: CudaContext, tmp_path: Path
) -> None:
    config = config_of(VADD, 2**24)
    program = compiler.compile(VADD)
    loaded = session.load(VADD, program)
    launcher = loaded.prepare(config)
    side = cuda_side(context, VADD, program, config)
    clock = context.event_clock()
    session.spin_up(50)
    opencl_ns = statistics.median([launcher.launch() for _ in range(20)])
    cuda_ns = statistics.median([clock.time_ns(side.launch, spin_ns=100_000) for _ in range(20)])
    loaded.release()
    assert cuda_ns == pytest.approx(opencl_ns, rel=0.1), json.dumps([opencl_ns, cuda_ns])

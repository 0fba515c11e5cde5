"""Our signatures against what a device's own compiler says of the same kernels (clGetKernelArgInfo)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.records import Access, Argument, ArgumentKind, Signature
from tests.support.reading import read_signatures
from tests.support.sampling import SLOW
from workers.device.interface import DeviceRef
from workers.discovery.find import choose

pytestmark = pytest.mark.opencl

KERNELS = Path(__file__).parents[3] / "kernels"
EXTRA = """
typedef unsigned int index_t;
typedef struct { float x, y; } pair;
__kernel void typedefs(__global const index_t *restrict i, __constant pair *p, __local uchar4 *t, const unsigned int n,
                       index_t m, unsigned long big, volatile __global int *v) {}
__kernel __attribute__((reqd_work_group_size(8, 4, 2))) void required(__global double3 *d, float16 w, char c) {}
__kernel void arrays(__global float a[], __global const int b[8], __local char t[4], __constant float4 w[2]) {}
__kernel void nothing(void) {}
__kernel void more(__global unsigned char *bytes, __constant short8 *s, __local int *a, long l, uchar2 u) {}
"""


@pytest.fixture(scope="module")  # other files' children must not inherit its cache folder
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The CPU device that passes a probe build: a listed one may be unable to build anything."""
    chosen = choose("cpu")
    if not isinstance(chosen, DeviceRef):
        pytest.skip(f"NOT TESTED: {chosen.message()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCL_CACHE_DIR", str(tmp_path_factory.mktemp("pocl")))
        cl = pytest.importorskip("pyopencl")
        devices = [
            device
            for platform in cl.get_platforms()
            for device in platform.get_devices()
            if (platform.name, device.name.strip()) == (chosen.platform, chosen.name)
        ]
        if not devices:
            pytest.skip("NOT TESTED: start pytest through `python -m workers.discovery.provide`")
        yield cl.Context(devices[:1])


def oracle(context: Any, source: str) -> dict[str, Any]:
    from workers.device.opencl.session import build_program  # noqa: PLC0415  (pyopencl may be absent)

    program, _ = build_program(context, context.devices[0], source, "-cl-kernel-arg-info")
    return {kernel.function_name: kernel for kernel in program.all_kernels()}


def sources() -> list[Any]:
    files = [
        pytest.param(path.read_text(), id=path.stem, marks=SLOW if number % 3 else ())
        for number, path in enumerate(sorted(KERNELS.glob("*.cl")))
    ]
    return [*files, pytest.param(EXTRA, id="extra")]


@pytest.mark.parametrize("source", sources())
def test_signature_agrees_with_the_compiler(context: Any, source: str):
    found = read_signatures(source)
    assert isinstance(found, tuple)
    kernels = oracle(context, source)
    assert {one.name for one in found} == set(kernels)
    for one in found:
        assert isinstance(one.signature, Signature), one
        check_kernel(one.signature, kernels[one.name], context.devices[0])


def check_kernel(signature: Signature, kernel: Any, device: Any) -> None:
    import pyopencl as cl  # noqa: PLC0415, TID251

    assert len(signature.arguments) == kernel.num_args
    for ours in signature.arguments:
        check_argument(ours, kernel)
    group = cl.kernel_work_group_info
    required = tuple(kernel.get_work_group_info(group.COMPILE_WORK_GROUP_SIZE, device))
    assert required == (signature.required_local_size or (0, 0, 0))


def check_argument(ours: Argument, kernel: Any) -> None:
    import pyopencl as cl  # noqa: PLC0415, TID251

    info, address = cl.kernel_arg_info, cl.kernel_arg_address_qualifier
    kinds = {
        address.GLOBAL: ArgumentKind.GLOBAL_BUFFER,
        address.CONSTANT: ArgumentKind.CONSTANT_BUFFER,
        address.LOCAL: ArgumentKind.LOCAL_BUFFER,
        address.PRIVATE: ArgumentKind.SCALAR,
    }
    position = ours.position
    # PoCL's headers define the names of built-in functions as macros: a parameter `step` is `_cl_step` to it.
    assert ours.name == kernel.get_arg_info(position, info.NAME).removeprefix("_cl_")
    assert ours.type_name == kernel.get_arg_info(position, info.TYPE_NAME)
    assert ours.kind is kinds[kernel.get_arg_info(position, info.ADDRESS_QUALIFIER)]
    if ours.kind.is_buffer:
        qualifiers = kernel.get_arg_info(position, info.TYPE_QUALIFIER)
        # Compilers do not agree on whether a constant buffer is also const.
        if ours.kind is not ArgumentKind.CONSTANT_BUFFER:
            is_const = bool(qualifiers & cl.kernel_arg_type_qualifier.CONST)
            assert ours.is_const is is_const
        assert ours.access is not Access.WRITE or not ours.is_const

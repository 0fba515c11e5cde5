"""Work of kernels with jumps, counted by virtual launches and by hand."""

from __future__ import annotations

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.work.counting import count_kernel
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

NUM_ITEMS = 64
HEAD = "__kernel void k(__global const int *a, __global int *c, int n) { int i = get_global_id(0); int s = 0, j = 0; "
JUMPS = {
    "into an if": ("goto in; if (n > 5) { in: s += a[i]; } s += a[i] + a[i]; s += a[i];", 4),
    "back into a block": ("{ again: s += a[i]; } s += a[i]; if (++j < 10) goto again;", 20),
    "to a case in an if": (
        "switch (n > 0) { case 0: if (n > 3) { s += a[i]; case 1: s += a[i]; } s += a[i] + a[i]; }",
        3,
    ),
    "to the end of a loop's body": (
        "for (; j < 10; j++) { if (j & 1) goto next; s += a[i]; next:; } s += a[i];",
        6,
    ),
    "not to the start of a switch": ("switch (n > 0) { s += a[i]; case 1: s += a[i]; }", 1),
    "not to the only case": ("switch (n > 0) case 0: s += a[i]; s += a[i];", 1),
    "in a loop with a pragma": (
        "\n#pragma unroll\nfor (; j < 3; j++) { if (j == 1) continue; s += a[i]; } s += a[i];",
        3,
    ),
    "behind a loop with an attribute": (
        "__attribute__((opencl_unroll_hint(3))) for (; j < 3; j++) s += a[i]; s += a[i];",
        4,
    ),
    "before a loop with a pragma": (
        "if (i >= 32) return;\n#pragma unroll 2\nfor (; j < 2; j++) s += a[i];",
        1,
    ),
    "over an empty statement": ("if (i >= 32) return; ; s += a[i] + a[i];", 1),
}
"""By the place to which a jump leads: a body, and the loads of each work-item in the mean."""


@pytest.mark.parametrize("name", JUMPS)
def test_code_behind_a_jump_is_counted_as_often_as_it_runs(
    virtual_device: OpenclVirtualDevice, name: str
) -> None:
    body, loads = JUMPS[name]
    kernel = kernel_of(f"{HEAD}{body} c[i] = s; }}")
    (counted,) = count_kernel(kernel, configs_of(kernel, NUM_ITEMS), virtual_device)
    assert isinstance(counted, Work)
    assert counted.is_exact
    assert counted.global_loads == loads * NUM_ITEMS

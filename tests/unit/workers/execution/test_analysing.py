"""Where kernels are analysed, and what a hung or dead analysis leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.workers.plan.test_launch_plan import BUFFER, LOCAL, SCALAR, argument, kernel
from workers.analysis.unknown import unknown_analysis
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice
from workers.execution import analysing
from workers.execution.analysing import (
    analyse_job,
    analysis_device,
    death_text,
    max_attempts,
    timeout_text,
)

CPU = DeviceRef(selector="pocl", platform="PoCL", name="a CPU")
NONE = NoDevice(selector="cpu", reasons=("nothing here",), mend=())


def ref(selector: str) -> DeviceRef:
    return DeviceRef(selector=selector, platform="p", name="n")


@pytest.mark.parametrize(
    ("selector", "how", "found", "wanted"),
    [
        ("cuda:1", "auto", CPU, "pocl"),
        ("cuda:1", "auto", NONE, "cuda:1"),
        ("cuda:1", "same", CPU, "cuda:1"),
        ("pocl", "auto", CPU, "pocl"),
        ("replay:/tmp/r.json", "auto", CPU, "replay:/tmp/r.json"),
    ],
)
def test_kernels_of_a_gpu_are_analysed_on_a_cpu_where_one_is_usable(
    monkeypatch: pytest.MonkeyPatch, selector: str, how: str, found: object, wanted: str
) -> None:
    monkeypatch.setattr(analysing, "choose", lambda _selector, *, tell: found)
    assert analysis_device(ref(selector), how).selector == wanted


def test_a_failed_analysis_lists_every_pointer_without_a_form() -> None:
    one = kernel(argument(0, BUFFER), argument(1, SCALAR), argument(2, LOCAL))
    found = unknown_analysis(one, timeout_text(60))
    assert [extent.position for extent in found.extents] == [0, 2]
    assert all(extent.form is None for extent in found.extents)
    assert {extent.reason for extent in found.extents} == {found.failure}
    assert "60 s (limits.analysis_timeout_s)" in found.failure
    assert (found.data_dependent, found.index_roles) == (None, ())


def test_an_exception_of_ours_is_told_from_a_death() -> None:
    assert death_text("signal SIGSEGV", "") == "the analysis ended its process: signal SIGSEGV"
    told = death_text("exit code 1", "Traceback\n" + "x" * 10_000 + "\nKeyError: 'n'")
    assert told.startswith("internal error: ")
    assert told.endswith("KeyError: 'n'")
    assert len(told) < 3000


def test_a_kernel_with_barriers_has_a_last_attempt_without_them() -> None:
    plain = replace(kernel(argument(0, BUFFER)), source="kernel void k(global int *a) {}")
    meets = replace(plain, source="kernel void k(global int *a) { barrier(1); }")
    assert (max_attempts(plain), max_attempts(meets)) == (2, 3)
    assert [analyse_job(meets, number).without_barriers for number in (1, 2, 3)] == [
        False,
        False,
        True,
    ]

"""Inputs with which kernels work: chosen where the usual ones leave nearly all work-items idle, and never at any other's cost."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from llmperf_common.analysis import (
    Analysis,
    ChosenScalar,
    ContentsRule,
    InputChoice,
    ScalarChoice,
)
from llmperf_common.features.work import Work
from llmperf_common.records import DeviceClass, Kernel, LaunchConfig, Strategy
from tests.support.reading import kernels_from_source
from workers.config import PlanConfig
from workers.device.interface import DeviceRef
from workers.discovery.find import NoDevice, choose
from workers.execution import analyse_ahead
from workers.execution.analyse_ahead import analyse_one
from workers.execution.analysing import analyse_job
from workers.plan.launch_plan import plan_configs
from workers.sandbox.messages import AnalyseJob
from workers.work import input_choice
from workers.work.children import count_work

pytestmark = pytest.mark.opencl

LATER_ROWS = """__kernel void k(__global float *a, int upper, int k) {
    int i = get_global_id(0);
    if (i > k) a[i] = a[i] * 2.0f + upper;
}"""
PARTS = """__kernel void k(__global const float *in, __global float *out, uint outputSize) {
    uint each = outputSize / sizeof(float) / get_global_size(0);
    float start = in[0], end = in[1];
    for (uint j = 0; j < each; j++) {
        uint at = get_global_id(0) * each + j;
        out[at] = start + at * (end - start);
    }
}"""
MASKED = """__kernel void k(__global const float *mask, __global float *out, int n) {
    int i = get_global_id(0);
    if (i >= n || mask[i] != 1.0f) return;
    out[i] = i;
}"""
TILED = """__kernel void k(__global float *a, int pitch, int h, int w, int width, int height) {
    int row = get_group_id(0) * width + get_local_id(0);
    int col = get_group_id(1) * height + get_local_id(1);
    if (row >= h || col >= w) return;
    a[row + col * pitch] = row;
}"""
FLOAT_SIZES = """__kernel void k(__global float *a, float width, float height) {
    int i = get_global_id(0);
    if (i < (int)width * (int)height) a[i] = i;
}"""
GUARDED = """__kernel void k(__global const float *a, __global float *out, int n, float scale) {
    int i = get_global_id(0);
    if (i < n) out[i] = a[i] * scale;
}"""
ONE_ITEM = """__kernel void k(__global float *a, int n) {
    if (get_global_id(0) == 0) for (int i = 0; i < n; i++) a[i] = n;
}"""
FAR_WHERE_BUSY = """__kernel void k(__global const float *mask, __global float *out, __global const float *in) {
    int i = get_global_id(0);
    float x = in[i];
    if (mask[i] == 1.0f) x += in[i * 1000];
    if (mask[i] == 1.0f) out[i] = x;
}"""
FAR_OR_LATER = FAR_WHERE_BUSY.replace("in) {", "in, int k) {").replace(
    "out[i] = x;", "out[i] = x; else if (i > k) out[i] = x;"
)
LATER_COLUMNS = """__kernel void k(
    __global float *a, __constant float *v, uint row, uint col, uint rows, uint cols, uint stride
) {
    for (uint i = get_global_id(0) + col; i < cols; i += get_global_size(0)) {
        float sum = 0;
        for (uint j = row; j < rows; j++) sum += v[j] * a[j * stride + i];
        for (uint j = row; j < rows; j++) a[j * stride + i] -= 2 * v[j] * sum;
    }
}"""
LONG_INSIDE = """
__kernel void k(__global float *a, uint row)
{
    uint i = get_global_id(0);
    float sum = 0;
    if (i <= row)
        return;
    for (uint j = 0; j < get_global_size(0); ++j)
        sum += a[j];
    a[i] = sum;
}
"""
LONG_OUTSIDE = """
__kernel void k(__global float *a, __global const float *f)
{
    int i = get_global_id(0), n = get_global_size(0);
    if (f[i] > 0)
        return;
    if (n > 600 && n < 60000)
        for (int j = 0; j < n * 4000; ++j)
            a[i + n + j % 7] += j;
    a[i] = i;
}
"""
"""With other contents than the usual its work-items work, and some sizes leave ``a``."""
ENDLESS_WHEN_LOW = """__kernel void k(__global float *a, int k) {
    int i = get_global_id(0);
    if (i > k) { volatile int x = 0; while (x < 1) { x = a[i] * 0.0f; } a[i] = x; }
}"""
LONG = LATER_ROWS.replace("upper;", "upper;" + "if (i > k + 1) a[i] = sin(a[i]) * cos(a[i]);" * 200)
"""Takes the compiler more than the second that is the shortest limit."""
A_CLASS = DeviceClass(
    name="a100", compute_units=108, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64),
    max_allocation_bytes=2**35, global_memory_bytes=2**36, local_memory_bytes=48 * 1024,
)  # fmt: skip


@pytest.fixture(scope="module")
def cpu_ref() -> DeviceRef:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())
    return found


def kernel_of(source: str) -> Kernel:
    (kernel,) = kernels_from_source(source)
    return kernel


def analysed(source: str, ref: DeviceRef) -> tuple[Analysis, InputChoice]:
    found = analyse_one(kernel_of(source), ref, timeout_s=60).analysis
    assert found.inputs is not None
    return found, found.inputs


def shares_active(
    source: str, analysis: Analysis, ref: DeviceRef, config: PlanConfig
) -> list[float]:
    kernel = kernel_of(source)
    configs = plan_configs(kernel, A_CLASS, config, analysis)
    works = count_work(kernel, configs, ref, timeout_s=300)
    assert all(isinstance(one, Work) for one in works), works
    return [
        one.active_items / math.prod(config.global_size)
        for one, config in zip(works, configs, strict=True)
        if isinstance(one, Work)
    ]


@pytest.mark.parametrize(
    ("source", "scalars", "contents"),
    [
        pytest.param(LATER_ROWS, {2: ScalarChoice.LOW}, None, marks=pytest.mark.slow),
        pytest.param(PARTS, {2: ScalarChoice.HIGH}, None, marks=pytest.mark.slow),
        pytest.param(MASKED, {}, ContentsRule.FLAGS, marks=pytest.mark.slow),
    ],
    ids=["later_rows", "parts", "masked"],
)
def test_a_kernel_that_does_nothing_on_usual_inputs_gets_others(
    cpu_ref: DeviceRef,
    source: str,
    scalars: dict[int, ScalarChoice],
    contents: ContentsRule | None,
) -> None:
    analysis, inputs = analysed(source, cpu_ref)
    assert {one.position: one.value for one in inputs.scalars} == scalars
    assert (inputs.contents.rule if inputs.contents else None) is contents
    assert inputs.plain_share == 0
    assert inputs.active_share is not None
    assert inputs.active_share > 0.4
    assert inputs.num_tried >= 1
    for strategies in ((Strategy.MEMORY_ANALYSIS,), (Strategy.DECOUPLED,)):
        plain = PlanConfig(samples_per_kernel=8, strategies=strategies, plain_share=1.0)
        chosen = PlanConfig(samples_per_kernel=8, strategies=strategies, plain_share=0.0)
        if strategies == (Strategy.MEMORY_ANALYSIS,):
            assert max(shares_active(source, analysis, cpu_ref, plain)) == 0
        shares = shares_active(source, analysis, cpu_ref, chosen)
        assert sum(share > 0.2 for share in shares) >= len(shares) / 2, shares


@pytest.mark.parametrize(
    ("source", "scalars", "has_forms"),
    [
        (TILED, dict.fromkeys((1, 4, 5), ScalarChoice.LOW), False),
        (FLOAT_SIZES, dict.fromkeys((1, 2), ScalarChoice.ROOT), True),
    ],
    ids=["tiled", "float_sizes"],
)
def test_scalars_that_only_help_together_are_chosen_together(
    cpu_ref: DeviceRef, source: str, scalars: dict[int, ScalarChoice], has_forms: bool
) -> None:
    analysis, inputs = analysed(source, cpu_ref)
    assert any(one.form is not None for one in analysis.extents) is has_forms
    assert {one.position: one.value for one in inputs.scalars} == scalars
    config = PlanConfig(samples_per_kernel=8, plain_share=0.0)
    shares = shares_active(source, analysis, cpu_ref, config)
    assert min(shares) > 0.4, shares


def test_a_share_of_work_items_is_at_most_one(
    cpu_ref: DeviceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counted number of active work-items is a sum of weights, which rounding can put above the number of all."""
    analysis, _ = analysed(LATER_ROWS, cpu_ref)

    def all_active(_kernel: Kernel, configs: list[LaunchConfig], *_: Any, **__: Any) -> Any:
        items = math.prod(configs[0].global_size)
        yield SimpleNamespace(active_items=items * (1 + 2.0**-51))

    monkeypatch.setattr(input_choice, "count_kernel", all_active)
    no_device: Any = None  # it is for the counts alone
    inputs = input_choice.choose_inputs(kernel_of(LATER_ROWS), analysis, no_device, no_device)
    assert inputs.plain_share == 1


def test_a_kernel_that_works_keeps_its_inputs_and_costs_no_virtual_launch(
    cpu_ref: DeviceRef,
) -> None:
    _, inputs = analysed(GUARDED, cpu_ref)
    assert inputs == InputChoice(floats_free=True)


def test_a_kernel_that_nothing_helps_says_so(cpu_ref: DeviceRef) -> None:
    _, inputs = analysed(ONE_ITEM, cpu_ref)
    assert inputs.is_plain
    assert inputs.plain_share == pytest.approx(1 / 65_536)
    assert inputs.reason


def test_inputs_that_lead_out_of_a_validated_buffer_are_not_chosen(cpu_ref: DeviceRef) -> None:
    analysis, inputs = analysed(FAR_WHERE_BUSY, cpu_ref)
    extent = analysis.extent(2)
    assert extent is not None
    assert extent.validated, "else the test shows nothing"
    assert inputs.is_plain
    assert "outside their buffers" in inputs.reason


def test_after_inputs_that_lead_out_of_a_buffer_the_next_are_chosen(cpu_ref: DeviceRef) -> None:
    _, inputs = analysed(FAR_OR_LATER, cpu_ref)
    assert inputs.contents is None
    assert inputs.scalars == (ChosenScalar(position=3, value=ScalarChoice.LOW),)


def test_long_loops_of_a_candidate_are_checked_at_small_sizes(cpu_ref: DeviceRef) -> None:
    _, inputs = analysed(LONG_INSIDE, cpu_ref)
    assert inputs.scalars == (ChosenScalar(position=1, value=ScalarChoice.LOW),)


def test_a_candidate_that_leaves_its_buffers_only_where_loops_are_long_is_not_chosen(
    cpu_ref: DeviceRef,
) -> None:
    _, inputs = analysed(LATER_COLUMNS, cpu_ref)
    assert inputs.is_plain
    assert "outside their buffers" in inputs.reason


def test_a_candidate_that_never_ends_is_not_chosen(cpu_ref: DeviceRef) -> None:
    analysis, inputs = analysed(ENDLESS_WHEN_LOW, cpu_ref)
    assert not analysis.failure
    assert inputs.is_plain


def test_a_launch_that_is_cut_off_outside_its_buffers_counts(cpu_ref: DeviceRef) -> None:
    _, inputs = analysed(LONG_OUTSIDE, cpu_ref)
    assert inputs.is_plain


@pytest.mark.slow
def test_a_child_that_dies_while_it_chooses_leaves_its_analysis(
    cpu_ref: DeviceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hurried(kernel: Kernel, attempt: int) -> AnalyseJob:
        return replace(analyse_job(kernel, attempt), choice_cpu_s=-5.0)

    whole, _ = analysed(LONG, cpu_ref)
    monkeypatch.setattr(analyse_ahead, "analyse_job", hurried)
    analysis, inputs = analysed(LONG, cpu_ref)
    assert replace(analysis, inputs=None) == replace(whole, inputs=None)
    assert inputs.is_plain
    assert "SIGXCPU" in inputs.reason


@pytest.mark.slow
def test_the_choice_is_the_same_again(cpu_ref: DeviceRef) -> None:
    assert analysed(MASKED, cpu_ref) == analysed(MASKED, cpu_ref)

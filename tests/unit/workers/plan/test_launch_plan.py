"""Laws of launch plans, checked over many kernels, devices and configs."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.features.regimes import regime_of
from llmperf_common.ids import sample_id
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    DeviceClass,
    Kernel,
    LaunchConfig,
    Regime,
    Signature,
    Strategy,
    launch_argument_json,
)
from workers.config import PlanConfig
from workers.plan.launch_plan import num_configs, plan_configs
from workers.plan.ndranges import MAX_ASPECT, Draws
from workers.plan.strategies.memory_limits import launch_bytes

H200 = DeviceClass(
    name="h200", compute_units=132, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64),
    max_allocation_bytes=37_500_000_000, global_memory_bytes=150_000_000_000, local_memory_bytes=49_152,
)  # fmt: skip
SMALL_CPU = DeviceClass(
    name="cpu", compute_units=2, max_work_group_size=4096, max_work_item_sizes=(4096, 4096, 4096),
    max_allocation_bytes=2**30, global_memory_bytes=2**32, local_memory_bytes=2**20,
)  # fmt: skip
BUFFER, LOCAL, SCALAR = (
    ArgumentKind.GLOBAL_BUFFER,
    ArgumentKind.LOCAL_BUFFER,
    ArgumentKind.SCALAR,
)


def argument(
    position: int, kind: ArgumentKind, scalar: str = "float", size_bytes: int = 4
) -> Argument:
    return Argument(
        position=position, name=f"a{position}", kind=kind, type_name=scalar, scalar_type=scalar, vector_width=1,
        element_bytes=size_bytes, access=Access.READ,
    )  # fmt: skip


def kernel(
    *arguments: Argument,
    dims: int = 1,
    required: tuple[int, ...] | None = None,
    static_local_bytes: int = 0,
) -> Kernel:
    signature = Signature(
        arguments=arguments, dims=dims, required_local_size=required,
        static_local_bytes=static_local_bytes, static_features={},
    )  # fmt: skip
    return Kernel(
        kernel_id=f"k{dims}", name="k", source="", source_sha256="", path="", suite="", family_id="",
        build_options="", signature=signature, failure=None,
    )  # fmt: skip


TWO_BUFFERS = (argument(0, BUFFER), argument(1, BUFFER), argument(2, SCALAR, "int"))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Kernel, DeviceClass, PlanConfig]:
    dims = draw(st.integers(1, 3))
    kinds = st.sampled_from([BUFFER, ArgumentKind.CONSTANT_BUFFER, LOCAL, SCALAR])
    scalars = st.sampled_from(["char", "uchar", "short", "int", "ulong", "half", "float", "double"])
    arguments = [
        argument(position, draw(kinds), draw(scalars), draw(st.sampled_from([1, 4, 16, 128])))
        for position in range(draw(st.integers(0, 5)))
    ]
    required = draw(
        st.none()
        | st.tuples(st.sampled_from([1, 8, 64]), *[st.sampled_from([1, 4])] * (dims - 1)).map(
            lambda shape: (*shape, 1, 1)[:3]
        )
    )
    device = DeviceClass(
        name="d",
        compute_units=draw(st.integers(1, 200)),
        max_work_group_size=draw(st.sampled_from([1, 24, 256, 1024, 4096])),
        max_work_item_sizes=draw(st.sampled_from([(4096,) * 3, (1024, 1024, 64), (16, 4, 1)])),
        max_allocation_bytes=draw(st.sampled_from([2**16, 2**24, 2**32])),
        global_memory_bytes=draw(st.sampled_from([2**18, 2**28, 2**36])),
        local_memory_bytes=draw(st.sampled_from([0, 1024, 49_152])),
        max_constant_buffer_bytes=draw(st.sampled_from([None, 256, 2**16])),
    )
    config = PlanConfig(
        samples_per_kernel=draw(st.integers(1, 40)),
        seed=draw(st.integers(0, 1000)),
        sampler=draw(st.sampled_from(["stratified", "uniform"])),
        idle_share=draw(st.sampled_from([0.0, 0.15, 0.5])),
        under_share=draw(st.sampled_from([0.0, 0.35, 0.5])),
        max_work_items=draw(st.sampled_from([1024, 2**18, 2**26])),
        max_launch_bytes=draw(st.sampled_from([2**20, 2**31])),
    )
    static = draw(st.sampled_from([0, 0, 4096]))
    return (
        kernel(*arguments, dims=dims, required=required, static_local_bytes=static),
        device,
        config,
    )


@settings(max_examples=150, deadline=None)
@given(requests())
def test_every_cap_holds(request: tuple[Kernel, DeviceClass, PlanConfig]):
    one, device, config = request
    signature = one.signature
    assert signature is not None
    planned = plan_configs(one, device, config)
    assert len(planned) <= config.samples_per_kernel
    assert len({launch.sample_id for launch in planned}) == len(planned) == num_configs(*request)
    for launch in planned:
        check_sizes(launch, signature, device, config)
        check_memory(launch, signature, device, config)
        assert launch.regime is regime_of(launch.num_work_groups, device.compute_units)
        assert launch.num_work_groups <= max(1, config.max_groups_per_unit * device.compute_units)
        assert launch.sample_id == sample_id(
            kernel_id=one.kernel_id, global_size=launch.global_size, local_size=launch.local_size,
            args=[launch_argument_json(item) for item in launch.args], device_class="d",
        )  # fmt: skip


def check_sizes(
    launch: LaunchConfig, signature: Signature, device: DeviceClass, config: PlanConfig
) -> None:
    assert len(launch.global_size) == len(launch.local_size) == signature.dims
    assert math.prod(launch.global_size) <= config.max_work_items
    assert math.prod(launch.local_size) <= device.max_work_group_size
    for total, group, most in zip(
        launch.global_size, launch.local_size, device.max_work_item_sizes, strict=False
    ):
        assert total >= group >= 1
        assert total % group == 0
        assert group <= most
    if signature.required_local_size is not None:
        required = signature.required_local_size
        assert launch.local_size == required[: signature.dims]


def check_memory(
    launch: LaunchConfig, signature: Signature, device: DeviceClass, config: PlanConfig
) -> None:
    total_bytes = launch_bytes(signature, launch)
    assert total_bytes <= min(config.max_launch_bytes, device.global_memory_bytes)
    local_bytes = signature.static_local_bytes
    for item, value in zip(signature.arguments, launch.args, strict=True):
        if item.kind is LOCAL:
            local_bytes += item.element_bytes * (value.elements or 0)
            assert value.elements == math.prod(launch.local_size)
        elif item.kind is not SCALAR:
            assert value.elements == max(launch.global_size) ** signature.dims
            num_bytes = item.element_bytes * (value.elements or 0)
            assert num_bytes <= device.max_allocation_bytes
            if item.kind is ArgumentKind.CONSTANT_BUFFER and device.max_constant_buffer_bytes:
                assert num_bytes <= device.max_constant_buffer_bytes
        else:
            floating = item.scalar_type in {"half", "float", "double"}
            limits = {"char": 127, "uchar": 255, "short": 32767}
            number = min(launch.global_size[0], limits.get(item.scalar_type, 2**31))
            assert value.value == (1.0 if floating else number)
    assert local_bytes <= device.local_memory_bytes


@settings(max_examples=30, deadline=None)
@given(requests())
def test_a_plan_is_a_pure_function(request: tuple[Kernel, DeviceClass, PlanConfig]):
    one, device, config = request
    assert plan_configs(one, device, config) == plan_configs(one, device, config)
    longer = PlanConfig(**config.model_dump())
    assert plan_configs(one, replace(device), longer) == plan_configs(one, device, config)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("device", [H200, SMALL_CPU], ids=lambda one: one.name)
def test_regimes_get_their_shares(dims: int, device: DeviceClass):
    planned = plan_configs(kernel(*TWO_BUFFERS, dims=dims), device, PlanConfig())
    counts = {regime: sum(one.regime is regime for one in planned) for regime in Regime}
    assert counts == {
        Regime.IDLE_SM: 10, Regime.UNDER_UTILISED: 24, Regime.FULLY_UTILISED: 34,
    }  # fmt: skip
    groups = sorted(one.num_work_groups for one in planned)
    assert groups[0] < 4
    assert groups[-1] > 300 * device.compute_units
    elongated = sum(max(one.global_size) > MAX_ASPECT * min(one.global_size) for one in planned)
    assert elongated <= 20 if dims > 1 else elongated == 0
    for one in planned:
        if one.num_work_groups > 64:
            assert max(one.global_size) <= MAX_ASPECT * min(one.global_size)


@pytest.mark.parametrize(
    ("groups", "units", "regime"),
    [
        (1, 1, Regime.IDLE_SM), (2, 1, Regime.UNDER_UTILISED), (20, 1, Regime.FULLY_UTILISED),
        (1, 2, Regime.IDLE_SM), (2, 2, Regime.UNDER_UTILISED), (39, 2, Regime.UNDER_UTILISED),
        (40, 2, Regime.FULLY_UTILISED), (131, 132, Regime.IDLE_SM), (132, 132, Regime.UNDER_UTILISED),
    ],
)  # fmt: skip
def test_regime_of(groups, units, regime):
    assert regime_of(groups, units) is regime


def test_local_sizes_of_1d_are_multiples_of_a_warp_and_varied():
    planned = plan_configs(kernel(*TWO_BUFFERS), H200, PlanConfig())
    sizes = {one.local_size[0] for one in planned}
    assert all(size % 32 == 0 and 32 <= size <= 1024 for size in sizes)
    assert len(sizes) > 20


def test_a_required_local_size_may_leave_fewer_configs():
    one = kernel(*TWO_BUFFERS, required=(64, 1, 1))
    planned = plan_configs(one, SMALL_CPU, PlanConfig(max_work_items=1024))
    assert {launch.local_size for launch in planned} == {(64,)}
    assert sorted(launch.global_size[0] for launch in planned) == [64 * n for n in range(1, 17)]


@pytest.mark.parametrize(
    "one",
    [
        kernel(argument(0, BUFFER, size_bytes=2**31)),
        kernel(required=(2048, 1, 1)),
        kernel(static_local_bytes=50_000),
        kernel(argument(0, LOCAL), static_local_bytes=49_152),
    ],
)
def test_what_never_fits_is_not_planned(one: Kernel):
    assert plan_configs(one, H200, PlanConfig(max_launch_bytes=2**20)) == ()
    assert num_configs(one, H200, PlanConfig(max_launch_bytes=2**20)) == 0


def test_local_arguments_shrink_the_work_group():
    wide = kernel(argument(0, LOCAL, size_bytes=1024))
    planned = plan_configs(wide, H200, PlanConfig())
    assert {launch.local_size for launch in planned} == {(32,)}
    wider = kernel(argument(0, LOCAL, size_bytes=4096))
    assert {x.local_size for x in plan_configs(wider, H200, PlanConfig())} == {(12,)}


def test_a_limit_of_constant_buffers_bounds_those_kernels_only():
    config = PlanConfig(strategies=(Strategy.SIMPLE,))
    limited = replace(H200, max_constant_buffer_bytes=65_536)
    filtered = kernel(argument(0, BUFFER), argument(1, ArgumentKind.CONSTANT_BUFFER))
    longest = [
        max(launch.global_size[0] for launch in plan_configs(filtered, device, config))
        for device in (limited, H200)
    ]
    assert 8192 < longest[0] <= 65_536 // 4 < longest[1]
    plain = kernel(*TWO_BUFFERS)
    assert plan_configs(plain, limited, config) == plan_configs(plain, H200, config)


def test_a_strategy_asked_for_twice_is_planned_once():
    once = plan_configs(kernel(*TWO_BUFFERS), H200, PlanConfig())
    twice = PlanConfig(strategies=(Strategy.SIMPLE, Strategy.SIMPLE))
    assert plan_configs(kernel(*TWO_BUFFERS), H200, twice) == once
    assert once[0].strategies == (Strategy.SIMPLE,)


def test_seed_and_order():
    config = PlanConfig(samples_per_kernel=40)
    planned = plan_configs(kernel(*TWO_BUFFERS), H200, config)
    other = plan_configs(kernel(*TWO_BUFFERS), H200, config.model_copy(update={"seed": 1}))
    assert planned != other
    items = [math.prod(one.global_size) for one in planned]
    assert items != sorted(items)
    assert len({one.seed for one in planned}) == len({one.global_size for one in planned})
    assert all(0 <= one.seed < 2**48 for one in planned)


def test_draws_are_the_documented_sequence():
    draws = Draws("golden")
    assert [draws.below(1000) for _ in range(5)] == [545, 89, 744, 808, 649]
    assert [Draws("x").log_uniform(1, 1000, at) for at in (0.0, 0.5, 0.999999)] == [1, 31, 1000]


def test_golden_plan():
    planned = plan_configs(kernel(*TWO_BUFFERS), H200, PlanConfig(samples_per_kernel=3))
    assert [(one.global_size, one.local_size, one.sample_id, one.seed) for one in planned] == [
        ((6293376,), (576,), 'ccbad19ef66586c113a6', 243146408584133),
        ((19323840,), (192,), 'f4716d6df56694b23916', 34641381397264),
        ((243776,), (832,), '3be105c990fd737b95d8', 143132704125549),
    ]  # fmt: skip


def test_siblings_differ_in_the_local_size_only_and_stay_in_their_regime():
    config = PlanConfig(samples_per_kernel=64, sibling_share=0.5)
    by_global: dict[tuple[int, ...], list[LaunchConfig]] = {}
    for one in plan_configs(kernel(*TWO_BUFFERS), H200, config):
        by_global.setdefault(one.global_size, []).append(one)
    families = [group for group in by_global.values() if len(group) > 1]
    assert len(families) >= 10
    for group in families:
        assert len({one.local_size for one in group}) == len(group)
        assert len({one.regime for one in group}) == 1
        assert len({one.args for one in group}) == 1


def test_few_local_sizes_are_powers_of_two():
    config = PlanConfig(samples_per_kernel=64, local_sizes="few")
    sizes = {one.local_size for one in plan_configs(kernel(*TWO_BUFFERS), H200, config)}
    assert sizes <= {(32,), (64,), (128,), (256,), (512,), (1024,)}
    assert len(sizes) > 2


def test_siblings_read_the_same_contents():
    """The time of another local size must not differ because other data were read."""
    config = PlanConfig(samples_per_kernel=64, sibling_share=0.5)
    seeds: dict[tuple[int, ...], set[int]] = {}
    for one in plan_configs(kernel(*TWO_BUFFERS), H200, config):
        seeds.setdefault(one.global_size, set()).add(one.seed)
    assert len(seeds) < 64, "there are siblings"
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds), "other sizes read other contents"
    other = plan_configs(kernel(*TWO_BUFFERS), H200, config.model_copy(update={"seed": 1}))
    assert not set.union(*seeds.values()) & {one.seed for one in other}

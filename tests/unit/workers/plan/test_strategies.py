"""Laws of the input strategies: what an analysis says is kept, what it does not say is planned simply."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.analysis import (
    VALUE_LIMIT,
    Analysis,
    Contents,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    Polynomial,
    Term,
    launch_sizes,
)
from llmperf_common.ids import content_id, sample_id
from llmperf_common.records import (
    Argument,
    ArgumentKind,
    DeviceClass,
    Kernel,
    LaunchConfig,
    Leaf,
    SizeRole,
    Strategy,
    launch_argument_json,
)
from tests.unit.workers.plan.test_launch_plan import (
    BUFFER,
    H200,
    LOCAL,
    SCALAR,
    SMALL_CPU,
    argument,
    kernel,
)
from workers.config import PlanConfig
from workers.plan.launch_plan import num_configs, plan_configs, seed_of
from workers.plan.strategies.buffers import ELEMENTS_PER_ROW, largest_that
from workers.plan.strategies.rules import needs_analysis
from workers.plan.strategies.scalars import DRAWN_LOOP_LIMITS, LOOP_LIMITS, drawn_value, role_value

SIMPLE, BY_ANALYSIS, DECOUPLED = (
    Strategy.SIMPLE,
    Strategy.MEMORY_ANALYSIS,
    Strategy.DECOUPLED,
)
PREFIX, BOUNDED = ContentsRule.PREFIX, ContentsRule.BOUNDED


LOOP_VALUE, MAX_DRAWN_LOOP = LOOP_LIMITS[0], DRAWN_LOOP_LIMITS[0]


def form(constant: int = 0, **coefficients: int) -> Polynomial:
    """``form(1, a2=3)`` is 1 + 3 * a2; a product is written ``a__b``."""
    terms = tuple(
        Term(factors=tuple(name.split("__")), coefficient=value)
        for name, value in coefficients.items()
    )
    return Polynomial(constant=constant, terms=terms)


def extent(position: int, of: Polynomial | None, cap: Polynomial | None = None) -> Extent:
    return Extent(position=position, form=of, cap=cap, validated=of is not None)


def role(position: int, rule: ContentsRule, *targets: tuple[int, Polynomial]) -> IndexRole:
    return IndexRole(
        position=position,
        rule=rule,
        targets=tuple(IndexTarget(position=at, form=of) for at, of in targets),
    )


def sized(position: int, size_role: SizeRole, scalar: str = "int") -> Argument:
    return replace(argument(position, SCALAR, scalar), size_role=size_role)


def plan(
    one: Kernel, analysis: Analysis | None, *strategies: Strategy, **settings_: object
) -> tuple[LaunchConfig, ...]:
    config = PlanConfig(strategies=strategies or (BY_ANALYSIS,), **settings_)  # type: ignore[arg-type]
    return plan_configs(one, H200, config, analysis)


def labels(planned: tuple[LaunchConfig, ...]) -> Counter[tuple[Strategy, ...]]:
    return Counter(one.strategies for one in planned)


VADD = kernel(argument(0, BUFFER), argument(1, BUFFER), sized(2, SizeRole.GUARD_0))
VADD_EXTENTS = Analysis(
    extents=(
        extent(0, form(global_size_0=1), form(a2=1)),
        extent(1, form(global_size_0=1), form(a2=1)),
    ),
    data_dependent=False,
)
CSR = kernel(
    *(argument(position, BUFFER, "int") for position in (0, 1)),  # row offsets, columns
    *(argument(position, BUFFER) for position in (2, 3, 4)),  # values, x, y
)
CSR_ANALYSIS = Analysis(
    extents=(
        extent(0, form(1, global_size_0=1)),
        *(Extent(position=position, form=None, reason="contents") for position in (1, 2, 3)),
        extent(4, form(global_size_0=1)),
    ),
    data_dependent=True,
    index_roles=(
        role(0, PREFIX, (1, form(-1, value_limit=1)), (2, form(-1, value_limit=1))),
        role(1, BOUNDED, (3, form(value_limit=1))),
    ),
)


# ------------------------------------------------------------------ what an analysis says is kept

NAMES = ["global_size_0", "local_size_0", "num_groups_0", "a6", "a7"]
FORMS = st.builds(
    lambda constant, terms: Polynomial(constant=constant, terms=tuple(terms)),
    st.integers(-100, 5000),
    st.lists(
        st.builds(
            Term,
            factors=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(tuple),
            coefficient=st.integers(-2, 4),
        ),
        max_size=2,
    ),
)


@st.composite
def analysed(draw: st.DrawFn) -> tuple[Kernel, Analysis]:
    """Six pointers (integers and floats, global, constant and local), two scalars, some forms and roles."""
    kinds = st.sampled_from([BUFFER, BUFFER, ArgumentKind.CONSTANT_BUFFER, LOCAL])
    types = st.sampled_from(["int", "uchar", "float", "ulong"])
    pointers = [argument(position, draw(kinds), draw(types)) for position in range(6)]
    roles = st.sampled_from(SizeRole)
    scalars = [
        sized(6, draw(roles)),
        sized(7, draw(roles), draw(st.sampled_from(["char", "uint"]))),
    ]
    one = kernel(*pointers, *scalars, dims=draw(st.integers(1, 3)))
    extents = [
        Extent(
            position=position,
            form=draw(st.none() | FORMS),
            cap=draw(st.none() | FORMS),
            validated=draw(st.booleans()),
        )
        for position in range(6)
    ]
    targets = st.tuples(
        st.integers(0, 5), st.builds(form, st.integers(-1, 3), value_limit=st.integers(1, 3))
    )
    index_roles = [
        role(position, draw(st.sampled_from(ContentsRule)), *draw(st.lists(targets, max_size=2)))
        for position in draw(st.sets(st.integers(0, 5), max_size=3))
    ]
    return one, Analysis(
        extents=tuple(extents),
        index_roles=tuple(index_roles),
        failure=draw(st.sampled_from(["", "", "", "it hung"])),
    )


REQUESTS = st.tuples(
    analysed(),
    st.lists(st.sampled_from(Strategy), min_size=1, max_size=3).map(tuple),
    st.sampled_from(
        [
            H200,
            SMALL_CPU,
            replace(SMALL_CPU, local_memory_bytes=2048),
            replace(H200, max_constant_buffer_bytes=65_536),
        ]
    ),
    st.sampled_from([2**20, 2**28, 2**31]),
)


@settings(max_examples=80, deadline=None)
@given(REQUESTS)
@pytest.mark.slow
def test_every_buffer_is_as_large_as_its_form_and_everything_fits(
    request: tuple[tuple[Kernel, Analysis], tuple[Strategy, ...], DeviceClass, int],
) -> None:
    (one, analysis), strategies, device, max_bytes = request
    config = PlanConfig(strategies=strategies, samples_per_kernel=9, max_launch_bytes=max_bytes)
    planned = plan_configs(one, device, config, analysis)
    assert planned == plan_configs(one, device, config, analysis), "a plan is a pure function"
    assert len(planned) == num_configs(one, device, config, analysis) <= 9
    assert len({launch.sample_id for launch in planned}) == len(planned)
    for launch in planned:
        check_memory(one, launch, device, max_bytes)
        if set(launch.strategies) & {BY_ANALYSIS, DECOUPLED}:
            assert not analysis.failure
            check_extents(one, analysis, launch)
        else:
            assert all(item.contents is None for item in launch.args)


def check_memory(one: Kernel, launch: LaunchConfig, device: DeviceClass, max_bytes: int) -> None:
    assert one.signature is not None
    sizes = {ArgumentKind.LOCAL_BUFFER: [0], BUFFER: [0]}
    for declared, item in zip(one.signature.arguments, launch.args, strict=True):
        if declared.kind.is_buffer:
            assert item.elements is not None
            assert item.elements >= 1
            kind = LOCAL if declared.kind is LOCAL else BUFFER
            num_bytes = item.elements * declared.element_bytes
            sizes[kind].append(num_bytes)
            if declared.kind is ArgumentKind.CONSTANT_BUFFER:
                assert num_bytes <= (device.max_constant_buffer_bytes or num_bytes)
    assert sum(sizes[BUFFER]) <= min(max_bytes, device.global_memory_bytes)
    assert max(sizes[BUFFER]) <= device.max_allocation_bytes
    assert sum(sizes[LOCAL]) <= device.local_memory_bytes


def check_extents(one: Kernel, analysis: Analysis, launch: LaunchConfig) -> None:
    assert one.signature is not None
    declared = one.signature.arguments
    scalars = {declared[at].name: launch.args[at].value or 0 for at in (6, 7)}
    sizes = launch_sizes(launch.global_size, launch.local_size, scalars)
    elements = [item.elements or 0 for item in launch.args[:6]]
    for known in analysis.extents:
        needed = known.elements(sizes)
        assert needed is None or elements[known.position] >= needed
    for known_role in analysis.index_roles:
        contents = launch.args[known_role.position].contents
        integers = declared[known_role.position].scalar_type != "float"
        if not integers or declared[known_role.position].kind is LOCAL:
            assert contents is None
            continue
        assert contents is not None
        assert contents.rule is known_role.rule
        largest = {"uchar": 256, "int": 2**31}.get(declared[known_role.position].scalar_type, 2**32)
        assert 1 <= contents.limit <= largest
        for target in known_role.targets:
            reach = target.form.value({**sizes, VALUE_LIMIT: contents.limit})
            assert reach <= elements[target.position], "a value reaches beyond what it indexes"


@settings(max_examples=30, deadline=None)
@given(REQUESTS)
def test_labels_are_honest(
    request: tuple[tuple[Kernel, Analysis], tuple[Strategy, ...], DeviceClass, int],
) -> None:
    (one, analysis), strategies, device, _ = request
    config = PlanConfig(strategies=strategies, samples_per_kernel=6)
    known = {e.position for e in analysis.extents if e.form is not None}
    known |= {target.position for item in analysis.index_roles for target in item.targets}
    allowed = {SIMPLE}
    if known and not analysis.failure:
        allowed = {BY_ANALYSIS} | ({SIMPLE} & set(strategies))
        if len(known) == 6:
            allowed |= {DECOUPLED}
    for launch in plan_configs(one, device, config, analysis):
        assert set(launch.strategies) <= allowed


# ------------------------------------------------------------------ memory analysis


def test_a_guarded_map_gets_what_it_touches():
    for launch in plan(VADD, VADD_EXTENTS):
        items = launch.global_size[0]
        assert [one.elements for one in launch.args] == [items, items, None]
        assert launch.args[2].value == items
    assert labels(plan(VADD, VADD_EXTENTS)) == {(BY_ANALYSIS,): 68}


@pytest.mark.parametrize(
    ("size_role", "global_size", "value"),
    [
        (SizeRole.GUARD_0, (4096, 512), 4096),
        (SizeRole.GUARD_1, (4096, 512), 512),
        (SizeRole.GUARD_2, (4096, 512), LOOP_VALUE),
        (SizeRole.PITCH, (4096, 512), 4096),
        (SizeRole.PITCH, (4096,), LOOP_VALUE),
        (SizeRole.LOOP, (4096, 512), LOOP_VALUE),
        (SizeRole.LANES, (4096,), 32),
        (SizeRole.LOOP, (96,), 96),
        (SizeRole.NONE, (4096,), LOOP_VALUE),
    ],
)
def test_scalars_follow_their_role(size_role, global_size, value):
    assert role_value(sized(0, size_role), global_size, LOOP_VALUE) == value
    assert role_value(sized(0, size_role, "char"), global_size, LOOP_VALUE) == min(value, 127)
    assert role_value(sized(0, size_role, "float"), global_size, LOOP_VALUE) == 1.0


def test_local_buffers_follow_the_local_size_and_bound_it():
    one = kernel(argument(0, BUFFER), argument(1, LOCAL))
    tile = Analysis(
        extents=(extent(0, form(global_size_0=1)), extent(1, form(32, local_size_0=40)))
    )
    planned = plan(one, tile)
    assert {launch.args[1].elements for launch in planned} == {
        32 + 40 * launch.local_size[0] for launch in planned
    }
    assert max(launch.local_size[0] for launch in planned) == 288, "49,152 bytes of local memory"


def test_a_local_buffer_too_large_for_the_usual_shapes_shrinks_the_group():
    one = kernel(argument(0, LOCAL))
    planned = plan(one, Analysis(extents=(extent(0, form(local_size_0=1000)),)))
    assert {launch.local_size for launch in planned} == {(12,)}


MATRIX = kernel(argument(0, BUFFER), sized(1, SizeRole.LOOP))
ROWS = Analysis(extents=(extent(0, form(global_size_0__a1=1)),))


def test_rows_of_a_matrix_get_shorter_where_there_are_many():
    planned = plan(MATRIX, ROWS)
    assert max(launch.global_size[0] for launch in planned) > 2**25
    for launch in planned:
        rows, length = launch.global_size[0], launch.args[1].value
        assert launch.args[0].elements == rows * length
        assert length in {rows, *LOOP_LIMITS}
        longer = [one for one in LOOP_LIMITS if length < min(one, rows)]
        assert all(rows * one * 4 > 2**31 - 10_000 for one in longer), "the longest that fit"


def test_drawn_rows_get_shorter_too():
    planned = plan(MATRIX, ROWS, DECOUPLED)
    assert len(planned) == 68
    assert max(launch.global_size[0] for launch in planned) > 2**25
    lengths = {launch.args[1].value for launch in planned if launch.global_size[0] < 2**17}
    assert max(lengths) > 500


def test_a_matrix_without_a_free_scalar_is_bounded_by_its_real_bytes():
    square = Analysis(extents=(extent(0, form(global_size_0__global_size_0=1)),))
    planned = plan(kernel(argument(0, BUFFER)), square)
    largest = max(launch.global_size[0] for launch in planned)
    assert 0.9 * 23_170 < largest <= 23_170, "2 GiB of floats"


def test_what_never_fits_is_not_planned():
    huge = Analysis(extents=(extent(0, form(2**40)), extent(1, form(1))))
    assert plan(VADD, huge) == ()


def test_constant_buffers_keep_to_their_limit():
    """A form that follows the global size is planned as far as 64 KiB go; one that does not, as ever."""
    limited = replace(H200, max_constant_buffer_bytes=65_536)
    declared = replace(argument(1, BUFFER), kind=ArgumentKind.CONSTANT_BUFFER)
    one = kernel(argument(0, BUFFER), declared)
    grows = form(global_size_0=1)
    sizes = {}
    for name, of in (("grows", grows), ("table", form(25))):
        analysis = Analysis(extents=(extent(0, grows), extent(1, of)), data_dependent=False)
        planned = plan_configs(one, limited, PlanConfig(), analysis)
        assert all(launch.strategies == (BY_ANALYSIS,) for launch in planned)
        sizes[name] = max(launch.global_size[0] for launch in planned)
    assert sizes["grows"] <= 65_536 // 4 < 2**20 < sizes["table"]


def test_a_form_that_was_not_validated_makes_no_buffer_smaller():
    seen = replace(VADD_EXTENTS.extents[0], form=form(16), cap=None, validated=False)
    analysis = Analysis(extents=(seen, VADD_EXTENTS.extents[1]))
    for launch in plan(VADD, analysis):
        assert launch.args[0].elements == launch.global_size[0]


def test_a_pointer_without_form_gets_the_simple_rule():
    analysis = Analysis(extents=(VADD_EXTENTS.extents[0], extent(1, None)))
    one = kernel(argument(0, BUFFER), argument(1, BUFFER), sized(2, SizeRole.GUARD_0), dims=2)
    for launch in plan(one, analysis):
        assert launch.args[1].elements == max(launch.global_size) ** 2


# ------------------------------------------------------------------ values that steer


def test_a_sparse_matrix_is_valid():
    for launch in plan(CSR, CSR_ANALYSIS):
        rows = launch.global_size[0]
        offsets, columns, values, x, _ = launch.args
        assert offsets.elements == rows + 1
        assert columns.elements == values.elements
        assert rows + 1 <= columns.elements <= ELEMENTS_PER_ROW * (rows + 1)
        assert offsets.contents == Contents(rule=PREFIX, limit=columns.elements + 1)
        assert columns.contents == Contents(rule=BOUNDED, limit=x.elements)
        assert values.contents is x.contents is None
    small = min(plan(CSR, CSR_ANALYSIS), key=lambda launch: launch.global_size)
    assert small.args[1].elements == ELEMENTS_PER_ROW * (small.global_size[0] + 1)


def test_rows_get_shorter_where_memory_is_short():
    planned = plan(CSR, CSR_ANALYSIS, max_launch_bytes=2**20, max_work_items=2**15)
    largest = max(planned, key=lambda launch: launch.global_size)
    assert largest.args[1].elements < ELEMENTS_PER_ROW * largest.global_size[0]
    assert largest.global_size[0] > 2**14


def test_a_buffer_that_indexes_itself_is_bounded_by_its_own_elements():
    one = kernel(argument(0, BUFFER, "int"))
    parents = Analysis(
        extents=(extent(0, form(global_size_0=1)),),
        index_roles=(role(0, BOUNDED, (0, form(value_limit=1))),),
    )
    for launch in plan(one, parents):
        items = launch.global_size[0]
        assert launch.args[0].contents == Contents(rule=BOUNDED, limit=items)


def test_buffers_of_row_offsets_in_a_circle_get_the_simple_rule():
    one = kernel(argument(0, BUFFER, "int"), argument(1, BUFFER, "int"))
    circle = Analysis(
        extents=(extent(0, None), extent(1, None)),
        index_roles=(
            role(0, PREFIX, (1, form(value_limit=1))),
            role(1, PREFIX, (0, form(value_limit=1))),
        ),
    )
    for launch in plan(one, circle, max_work_items=2**20):
        items = launch.global_size[0]
        assert sorted(item.elements for item in launch.args) == [items, ELEMENTS_PER_ROW * items]
        for item, other in (launch.args, launch.args[::-1]):
            assert item.contents == Contents(rule=PREFIX, limit=other.elements)


def test_a_narrow_type_bounds_its_values():
    one = kernel(argument(0, BUFFER, "uchar", 1), argument(1, BUFFER))
    bins = Analysis(
        extents=(extent(0, form(global_size_0=1)), extent(1, None)),
        index_roles=(role(0, BOUNDED, (1, form(value_limit=1))),),
    )
    limits = {launch.args[0].contents.limit for launch in plan(one, bins)}
    assert max(limits) == 256


def test_rows_that_are_indexed_have_at_least_sixteen_of_them():
    one = kernel(argument(0, BUFFER, "int"), argument(1, BUFFER), sized(2, SizeRole.LOOP))
    table = Analysis(
        extents=(extent(0, form(global_size_0=1)), extent(1, None)),
        index_roles=(role(0, BOUNDED, (1, form(a2__value_limit=1))),),
    )
    for launch in plan(one, table):
        assert launch.args[0].contents.limit >= 16


def test_values_that_bound_a_loop_only_stay_small():
    one = kernel(argument(0, BUFFER, "int"))
    counts = Analysis(extents=(extent(0, form(global_size_0=1)),), index_roles=(role(0, BOUNDED),))
    assert {launch.args[0].contents.limit for launch in plan(one, counts)} == {16}


def test_integers_inside_structures_can_be_indices():
    leaves = (
        Leaf(offset_bytes=0, scalar_type="ushort", count=1),
        Leaf(offset_bytes=4, scalar_type="float", count=1),
    )
    edges = replace(argument(0, BUFFER, "", 8), leaves=leaves)
    analysis = Analysis(
        extents=(extent(0, form(global_size_0=1)), extent(1, None)),
        index_roles=(role(0, BOUNDED, (1, form(value_limit=1))),),
    )
    limits = {x.args[0].contents.limit for x in plan(kernel(edges, argument(1, BUFFER)), analysis)}
    assert max(limits) == 2**16


def test_largest_that():
    assert largest_that(lambda number: number <= 1, 100) == 1
    assert largest_that(lambda number: False, 100) == 1
    assert largest_that(lambda number: True, 100) == 100


# ------------------------------------------------------------------ decoupled


def test_decoupled_scalars_lie_on_both_sides_of_the_global_size():
    planned = plan(VADD, VADD_EXTENTS, DECOUPLED)
    assert labels(planned) == {(DECOUPLED,): 68}
    for launch in planned:
        items, value = launch.global_size[0], launch.args[2].value
        assert math.ceil(items / 4) <= value <= 4 * items
        assert launch.args[0].elements == min(items, value)
    below = sum(launch.args[2].value < launch.global_size[0] for launch in planned)
    assert 20 < below < 48


@pytest.mark.parametrize(
    ("size_role", "global_size", "low", "high"),
    [
        (SizeRole.GUARD_1, (4096, 512), 128, 2048),
        (SizeRole.PITCH, (4096, 512), 4096, 8192),
        (SizeRole.PITCH, (4096,), 1, MAX_DRAWN_LOOP),
        (SizeRole.LOOP, (64,), 1, MAX_DRAWN_LOOP),
        (SizeRole.NONE, (64,), 1, MAX_DRAWN_LOOP),
    ],
)
def test_drawn_scalars_keep_their_range_and_use_it(size_role, global_size, low, high):
    shares = [number / 400 for number in range(400)]
    found = [drawn_value(sized(0, size_role), global_size, at, MAX_DRAWN_LOOP) for at in shares]
    assert found == sorted(found)
    assert low <= min(found) <= low * 1.3 + 1
    assert high * 0.8 <= max(found) <= high
    assert drawn_value(sized(0, size_role, "float"), global_size, 0.5, MAX_DRAWN_LOOP) == 1.0
    assert drawn_value(sized(0, size_role, "char"), global_size, 0.9, MAX_DRAWN_LOOP) <= 127


def test_siblings_have_the_same_scalars():
    planned = plan(VADD, VADD_EXTENTS, DECOUPLED, sibling_share=0.5)
    by_size: dict[tuple[int, ...], set[float | int | None]] = {}
    for launch in planned:
        by_size.setdefault(launch.global_size, set()).add(launch.args[2].value)
    assert len(by_size) < len(planned)
    assert all(len(values) == 1 for values in by_size.values())


def test_what_cannot_be_decoupled_is_planned_by_its_analysis():
    no_scalar = kernel(argument(0, BUFFER))
    one_extent = Analysis(extents=(extent(0, form(global_size_0=1)),))
    assert labels(plan(no_scalar, one_extent, DECOUPLED)) == {(BY_ANALYSIS,): 68}
    half_known = Analysis(extents=(VADD_EXTENTS.extents[0], extent(1, None)))
    assert labels(plan(VADD, half_known, DECOUPLED)) == {(BY_ANALYSIS,): 68}
    assert plan(VADD, half_known, DECOUPLED) == plan(VADD, half_known, BY_ANALYSIS)


# ------------------------------------------------------------------ several strategies, and none


def test_strategies_share_the_configs_of_a_kernel():
    planned = plan(VADD, VADD_EXTENTS, BY_ANALYSIS, DECOUPLED, SIMPLE)
    assert sum(labels(planned).values()) == 68
    by_strategy = Counter(label for launch in planned for label in launch.strategies)
    assert all(22 <= by_strategy[one] <= 24 for one in Strategy)


def test_equal_configs_carry_all_labels():
    one = kernel(argument(0, BUFFER), required=(64, 1, 1))
    same = Analysis(extents=(extent(0, form(global_size_0=1)),))
    config = PlanConfig(strategies=(BY_ANALYSIS, SIMPLE), max_work_items=1024)
    planned = plan_configs(one, SMALL_CPU, config, same)
    assert len(planned) == 16, "all there are"
    assert {frozenset(launch.strategies) for launch in planned} == {
        frozenset({BY_ANALYSIS, SIMPLE})
    }


@pytest.mark.parametrize(
    "analysis",
    [
        None,
        Analysis(extents=(extent(0, None), extent(1, None)), failure="it hung"),
        Analysis(extents=(extent(0, None), extent(1, None))),
    ],
)
def test_without_any_form_the_plan_is_the_simple_one(analysis):
    wanted = plan(VADD, None, SIMPLE)
    for strategies in ((BY_ANALYSIS,), (DECOUPLED,), (BY_ANALYSIS, DECOUPLED)):
        assert plan(VADD, analysis, *strategies) == wanted
    assert labels(wanted) == {(SIMPLE,): 68}


def test_a_kernel_without_pointers_needs_no_form():
    assert labels(plan(kernel(sized(0, SizeRole.LOOP)), Analysis(extents=()))) == {
        (BY_ANALYSIS,): 68
    }


def test_who_needs_an_analysis():
    assert not needs_analysis((SIMPLE,))
    assert needs_analysis((SIMPLE, DECOUPLED))
    assert needs_analysis((BY_ANALYSIS,))


def of_the_first_release(launch: LaunchConfig, device: DeviceClass, dims: int) -> tuple[str, int]:
    """Return id and seed of a config under harness version 1."""
    identifier = sample_id(
        kernel_id=kernel(dims=dims).kernel_id,
        global_size=launch.global_size,
        local_size=launch.local_size,
        args=[launch_argument_json(one) for one in launch.args],
        device_class=device.name,
        harness_version=1,
    )
    return identifier, seed_of([0, identifier])


def test_simple_plans_are_those_of_the_first_release():
    """Configs of recorded datasets: they must not change."""
    arguments = (
        argument(0, BUFFER), argument(1, BUFFER), argument(2, SCALAR, "int"), argument(3, LOCAL),
        argument(4, SCALAR, "uchar"),
    )  # fmt: skip
    settings_: list[dict[str, object]] = [
        {},
        {"local_sizes": "few", "samples_per_kernel": 13},
        {"sampler": "uniform"},
        {"max_launch_bytes": 2**22},
    ]
    ids = [
        [
            of_the_first_release(launch, device, dims)
            for launch in plan_configs(
                kernel(*arguments, dims=dims),
                device,
                PlanConfig(strategies=(SIMPLE,), **changes),  # type: ignore[arg-type]
            )
        ]
        for dims in (1, 2, 3)
        for device in (H200, SMALL_CPU)
        for changes in settings_
    ]
    assert content_id("x", ids) == "c76bcd64b03ba1ce3d61"


@pytest.mark.parametrize("strategy", list(Strategy))
def test_no_local_size_overflows_the_arrays_of_a_kernel(strategy):
    one = kernel(argument(0, BUFFER), dims=2)
    tiled = Analysis(
        extents=(extent(0, form(global_size_0=1)),),
        overflowing_local_sizes=((8, 32), (32, 2), (64, 1)),
    )
    plan = plan_configs(one, H200, PlanConfig(strategies=(strategy, BY_ANALYSIS)), tiled)
    assert {config.local_size for config in plan} == {(8, 8), (16, 4), (4, 16), (16, 8), (8, 16), (16, 16)}  # fmt: skip


@pytest.mark.parametrize(
    ("smallest", "planned"), [((17,), {(16,), (8,)}), ((5,), {(4,), (2,)}), ((2,), {(1,)})]
)
def test_arrays_of_a_few_elements_get_groups_of_a_few_work_items(smallest, planned):
    tiny = Analysis(extents=(extent(0, None),), failure="none", overflowing_local_sizes=(smallest,))
    plan = plan_configs(
        kernel(argument(0, BUFFER)), H200, PlanConfig(strategies=(BY_ANALYSIS,)), tiny
    )
    assert {config.local_size for config in plan} == planned
    assert {config.strategies for config in plan} == {(SIMPLE,)}


def test_what_splits_a_group_is_drawn_among_powers_of_two():
    lanes = sized(0, SizeRole.LANES)
    found = {drawn_value(lanes, (4096,), number / 100, MAX_DRAWN_LOOP) for number in range(100)}
    assert found == {1, 2, 4, 8, 16, 32}


SCALED = kernel(
    argument(0, BUFFER),
    argument(1, BUFFER),
    sized(2, SizeRole.GUARD_0),
    argument(3, SCALAR, "float"),
)


def test_drawn_floats_are_not_always_one():
    planned = plan(SCALED, VADD_EXTENTS, DECOUPLED, sibling_share=0.25)
    by_size = {one.global_size: one.args[3].value for one in planned}
    assert all(by_size[one.global_size] == one.args[3].value for one in planned), "siblings agree"
    found = list(by_size.values())
    assert 0.3 < found.count(1.0) / len(found) < 0.7
    others = [value for value in found if value != 1.0]
    assert 0.125 <= min(others) < 0.5
    assert 2.0 < max(others) <= 8.0
    assert {one.args[3].value for one in plan(SCALED, VADD_EXTENTS, BY_ANALYSIS)} == {1.0}


def test_floats_stay_where_they_might_decide_an_extent():
    doubtful = replace(VADD_EXTENTS.extents[1], validated=False, reason="contents")
    analysis = replace(VADD_EXTENTS, extents=(VADD_EXTENTS.extents[0], doubtful))
    planned = plan(SCALED, analysis, DECOUPLED)
    assert labels(planned) == {(DECOUPLED,): 68}
    assert {one.args[3].value for one in planned} == {1.0}

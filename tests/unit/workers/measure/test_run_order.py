"""The order of a task's launch configs, against kernels whose cost is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.failures import FailureCode
from llmperf_common.records import ArgumentKind, LaunchArgument, LaunchConfig, Strategy
from workers.measure.run_order import FAR_TOO_LONG, FEW_TOO_LONG, HUNG_NS, RunOrder

LIMIT_NS = 50e6
FLOOR_NS = 5e3


def config(items: int, *, scalar: int | None = None, local: int = 64) -> LaunchConfig:
    return LaunchConfig(
        sample_id=f"{items}-{scalar}-{local}",
        global_size=(items,),
        local_size=(local,),
        args=(
            LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=items),
            LaunchArgument(position=1, kind=ArgumentKind.SCALAR, value=scalar or items),
        ),
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=0,
    )


def shuffled_sizes(seed: int, count: int = 68) -> list[LaunchConfig]:
    drawn = random.Random(seed)
    return [config(64 * int(2 ** drawn.uniform(0, 20))) for _ in range(count)]


def drive(
    configs: Sequence[LaunchConfig], cost_ns: Callable[[LaunchConfig], float]
) -> tuple[list[int], dict[int, FailureCode]]:
    """Return the configs that were launched, in order, and those that were given up."""
    order = RunOrder(configs, [None] * len(configs), range(len(configs)), max_launch_ns=LIMIT_NS)
    launched, given_up = [], {}
    for index in order:
        launched.append(index)
        order.note(index, cost_ns(configs[index]))
        given_up.update({one: failure.code for one, failure in order.take_hopeless()})
    return launched, given_up


def power_law(exponent: float) -> Callable[[LaunchConfig], float]:
    return lambda one: FLOOR_NS + 0.01 * float(one.global_size[0]) ** exponent


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_short_kernels_run_everything_and_nearly_all_of_it_in_the_plans_order(
    exponent: float,
) -> None:
    configs = shuffled_sizes(1)
    launched, given_up = drive(configs, power_law(exponent))
    assert sorted(launched) == list(range(len(configs)))
    assert not given_up
    late = launched[len(launched) // 3 :]
    assert late == sorted(late)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
@pytest.mark.parametrize("seed", range(20))
def test_no_launch_is_much_longer_than_the_limit(exponent: float, seed: int) -> None:
    """The largest of these would take minutes to years; what is too long takes less than two seconds in all."""
    configs = shuffled_sizes(seed)
    cost = power_law(exponent)
    launched, given_up = drive(configs, cost)
    spent_ns = [cost(configs[index]) for index in launched]
    assert max(map(cost, configs)) > 1e12
    assert sum(one for one in spent_ns if one > LIMIT_NS) < 2e9
    within = {index for index, one in enumerate(configs) if cost(one) <= LIMIT_NS}
    assert within <= set(launched), "what is short enough is launched"
    assert set(given_up.values()) == {FailureCode.OVER_TIME_BUDGET}
    assert sorted([*launched, *given_up]) == list(range(len(configs)))


def test_the_smallest_comes_first() -> None:
    configs = shuffled_sizes(3)
    launched, _ = drive(configs, power_law(1.0))
    assert configs[launched[0]].global_size == min(one.global_size for one in configs)


def test_what_is_no_smaller_than_a_hang_is_not_tried() -> None:
    configs = [config(64, scalar=8), config(128, scalar=8), config(64, scalar=4), config(32)]
    order = RunOrder(configs, [HUNG_NS, None, None, None], [1, 2, 3], max_launch_ns=LIMIT_NS)
    found = dict(order.take_hopeless())
    assert {index: failure.code for index, failure in found.items()} == {1: FailureCode.QUARANTINED}
    assert set(order) == {2, 3}


def test_a_little_too_long_gives_nothing_up_until_it_has_happened_often() -> None:
    configs = [config(64 * (number + 1)) for number in range(8)]
    order = RunOrder(configs, [None] * 8, range(8), max_launch_ns=LIMIT_NS)
    launched = []
    for index in order:
        launched.append(index)
        order.note(index, 1.5 * LIMIT_NS)
        order.take_hopeless()
    assert len(launched) == FEW_TOO_LONG


@pytest.mark.parametrize(("times_the_limit", "given_up"), [(FAR_TOO_LONG, 7), (3.9, 0)])
def test_far_too_long_once_is_enough(times_the_limit: float, given_up: int) -> None:
    configs = [config(64 * (number + 1)) for number in range(8)]
    order = RunOrder(
        configs, [times_the_limit * LIMIT_NS, *[None] * 7], range(1, 8), max_launch_ns=LIMIT_NS
    )
    assert len(order.take_hopeless()) == given_up
    assert not order.take_hopeless()


def test_another_local_size_is_always_tried_unless_one_hung() -> None:
    configs = [config(4096, local=local) for local in (32, 64, 128, 256)]
    for took_ns, given_up in ((100 * LIMIT_NS, 0), (HUNG_NS, 3)):
        order = RunOrder(configs, [took_ns, None, None, None], [1, 2, 3], max_launch_ns=LIMIT_NS)
        assert len(order.take_hopeless()) == given_up


@pytest.mark.parametrize("scalar", [10**200, -(10**200), 0])
def test_scalars_of_any_size_are_numbers(scalar: int) -> None:
    configs = [config(64, scalar=1), config(128, scalar=scalar)]
    order = RunOrder(configs, [5e3, None], [1], max_launch_ns=LIMIT_NS)
    assert list(order) == [1]


def test_a_clock_that_says_nothing_does_not_make_every_size_safe() -> None:
    configs = [config(64), config(2**26), config(128)]
    order = RunOrder(configs, [0.0, None, None], [1, 2], max_launch_ns=LIMIT_NS)
    assert next(iter(order)) == 2


def test_a_failure_without_a_time_teaches_nothing() -> None:
    configs = shuffled_sizes(5, count=6)
    order = RunOrder(configs, [None] * 6, range(6), max_launch_ns=LIMIT_NS)
    seen = []
    for index in order:
        seen.append(configs[index].global_size[0])
        order.note(index, None)
    assert seen == sorted(seen)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(-5, 10**4)), min_size=1, max_size=20),
    st.lists(st.one_of(st.none(), st.floats(1.0, 1e12)), min_size=20, max_size=20),
)
def test_every_config_is_launched_or_given_up_once(
    sizes: list[tuple[int, int]], costs: list[float | None]
) -> None:
    configs = [config(items, scalar=scalar) for items, scalar in sizes]
    order = RunOrder(configs, [None] * len(configs), range(len(configs)), max_launch_ns=LIMIT_NS)
    seen: list[int] = []
    for index in order:
        seen.append(index)
        order.note(index, costs[index])
        seen += [one for one, _ in order.take_hopeless()]
    assert sorted(seen) == list(range(len(configs)))

"""Inputs beside the usual ones: which launches get them, and that who plans, siblings and devices do not differ in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmperf_common.analysis import (
    HIGH_FACTOR,
    Analysis,
    ChosenScalar,
    Contents,
    ContentsRule,
    InputChoice,
    ScalarChoice,
)
from llmperf_common.records import ArgumentKind, LaunchConfig, SizeRole, Strategy
from tests.unit.workers.plan.test_launch_plan import (
    BUFFER,
    H200,
    SCALAR,
    SMALL_CPU,
    argument,
    kernel,
)
from tests.unit.workers.plan.test_strategies import CSR, CSR_ANALYSIS, extent, form, sized
from workers.config import PlanConfig
from workers.plan.launch_plan import plan_configs
from workers.plan.strategies.rules import completing_rule
from workers.plan.strategies.scalars import chosen_value

MANY = 300
FLAGS = Contents(rule=ContentsRule.FLAGS, limit=2)
KERNEL = kernel(
    argument(0, BUFFER),
    argument(1, BUFFER, "int"),
    sized(2, SizeRole.GUARD_0),
    sized(3, SizeRole.LOOP),
    argument(4, SCALAR, "float"),
)
FREE = InputChoice(floats_free=True)
CHOSEN = InputChoice(
    floats_free=True,
    scalars=(
        ChosenScalar(position=2, value=ScalarChoice.LOW),
        ChosenScalar(position=3, value=ScalarChoice.HIGH),
    ),
    contents=FLAGS,
    num_tried=3,
    plain_share=0.0,
    active_share=0.9,
)


def analysis(inputs: InputChoice | None, *, data_dependent: bool = False) -> Analysis:
    return Analysis(
        extents=(extent(0, form(global_size_0=1)), extent(1, form(global_size_0=1))),
        data_dependent=data_dependent,
        inputs=inputs,
    )


def planned(found: Analysis, *, number: int = MANY, **settings: object) -> list[LaunchConfig]:
    config = PlanConfig(samples_per_kernel=number, **settings)  # type: ignore[arg-type]
    return list(plan_configs(KERNEL, H200, config, found))


def is_usual(one: LaunchConfig) -> bool:
    n, turns, scale = (one.args[position].value for position in (2, 3, 4))
    side = one.global_size[0]
    is_usual_value = (n, turns, scale) == (side, min(side, 1024), 1.0)
    return is_usual_value and all(argument.contents is None for argument in one.args)


def test_what_was_chosen_is_planned_but_for_the_stated_share() -> None:
    configs = planned(analysis(CHOSEN))
    usual = [one for one in configs if is_usual(one)]
    assert 0.05 < len(usual) / len(configs) < 0.16
    for one in configs:
        if one not in usual:
            assert one.args[2].value == 1
            assert one.args[3].value == HIGH_FACTOR * one.global_size[0]
            assert one.args[0].contents == one.args[1].contents == FLAGS


def test_a_plain_plan_is_that_of_a_kernel_of_which_nothing_is_known() -> None:
    plain = planned(analysis(CHOSEN), plain_share=1.0)
    assert all(map(is_usual, plain))
    assert plain == planned(analysis(None, data_dependent=True), plain_share=1.0)


def test_the_simple_strategy_stays_as_it_is() -> None:
    for one in planned(analysis(CHOSEN), strategies=(Strategy.SIMPLE,)):
        assert (one.args[2].value, one.args[4].value) == (one.global_size[0], 1.0)
        assert all(argument.contents is None for argument in one.args)


def test_inputs_chosen_for_a_kernel_without_forms_are_planned() -> None:
    """They were tried in buffers of the simple rule's sizes, so these are planned."""
    without = replace(analysis(CHOSEN), extents=(extent(0, None), extent(1, None)))
    configs = planned(without, number=20, plain_share=0.0)
    assert {one.strategies for one in configs} == {(Strategy.MEMORY_ANALYSIS,)}
    for one in configs:
        assert one.args[2].value == 1
        assert [one.args[position].elements for position in (0, 1)] == 2 * [one.global_size[0]]
    for other in (FREE, None):
        usual = planned(replace(without, inputs=other), number=20)
        assert {one.strategies for one in usual} == {(Strategy.SIMPLE,)}
    failed = planned(replace(without, failure="a probe crashed"), number=20)
    assert {one.strategies for one in failed} == {(Strategy.SIMPLE,)}


def test_siblings_devices_and_predictions_do_not_differ_in_it() -> None:
    found = analysis(CHOSEN)
    by_size: dict[tuple[int, ...], set[object]] = {}
    for device in (H200, SMALL_CPU):
        config = PlanConfig(samples_per_kernel=60, sibling_share=1.0)
        rule = completing_rule(KERNEL, device, PlanConfig(), found, {})
        for one in plan_configs(KERNEL, device, config, found):
            assert one.args == rule.arguments(one.global_size, one.local_size)
            scalars = tuple(a.value for a in one.args if a.kind is ArgumentKind.SCALAR)
            by_size.setdefault(one.global_size, set()).add((scalars, one.args[0].contents))
    assert any(is_usual(one) for one in planned(found, number=60))
    assert {len(variants) for variants in by_size.values()} == {1}


def test_another_seed_keeps_other_global_sizes_usual() -> None:
    sizes = [
        frozenset(one.global_size for one in planned(analysis(CHOSEN), seed=seed) if is_usual(one))
        for seed in (0, 1)
    ]
    assert sizes[0] != sizes[1]


def test_what_a_user_gives_is_kept() -> None:
    rule = completing_rule(KERNEL, H200, PlanConfig(plain_share=0.0), analysis(CHOSEN), {2: 77})
    arguments = rule.arguments((4096,), (64,))
    assert (arguments[2].value, arguments[3].value) == (77, HIGH_FACTOR * 4096)


def test_floats_are_not_always_one_and_some_are_negative() -> None:
    values = [one.args[4].value for one in planned(analysis(FREE))]
    numbers = [value for value in values if value is not None]
    assert 0.4 < sum(number == 1.0 for number in numbers) / len(numbers) < 0.75
    assert 0.04 < sum(number < 0 for number in numbers) / len(numbers) < 0.2
    assert all(1 / 8 <= abs(number) <= 8 for number in numbers)


@pytest.mark.parametrize(
    "found",
    [
        analysis(None),
        analysis(replace(FREE, floats_free=False)),
        replace(
            analysis(FREE),
            extents=(replace(extent(0, form(global_size_0=1)), validated=False), extent(1, form(global_size_0=1))),
        ),
    ],
    ids=["unknown", "steer", "bound"],
)  # fmt: skip
def test_floats_that_may_decide_something_stay_one(found: Analysis) -> None:
    assert {one.args[4].value for one in planned(found)} == {1.0}


def test_contents_of_either_sign_only_where_contents_steer_nothing() -> None:
    rules = [one.args[0].contents for one in planned(analysis(FREE))]
    share = sum(one is not None and one.rule is ContentsRule.SIGNED for one in rules) / len(rules)
    assert 0.15 < share < 0.3
    assert {one.args[1].contents for one in planned(analysis(FREE))} == {None}, "integers"
    dependent = planned(analysis(FREE, data_dependent=True))
    assert {one.args[0].contents for one in dependent} == {None}


def test_contents_that_steer_keep_their_rule() -> None:
    config = PlanConfig(samples_per_kernel=20, plain_share=0.0)
    chosen = replace(CSR_ANALYSIS, inputs=InputChoice(contents=FLAGS))
    for one in plan_configs(CSR, H200, config, chosen):
        rules = [argument.contents and argument.contents.rule for argument in one.args]
        assert rules[:2] == [ContentsRule.PREFIX, ContentsRule.BOUNDED]
        assert rules[2:] == [ContentsRule.FLAGS] * 3


@pytest.mark.parametrize(("value", "expected"), [(ScalarChoice.SIDE, 100), (ScalarChoice.ROOT, 63)])
def test_floats_that_are_sizes_follow_the_ndrange(value: ScalarChoice, expected: int) -> None:
    number = argument(0, SCALAR, "float")
    assert chosen_value(number, (100, 40), value) == expected
    assert chosen_value(argument(0, SCALAR, "char"), (1000, 1000), value) == 127
    choice = replace(FREE, floats_free=False, scalars=(ChosenScalar(position=4, value=value),))
    for one in planned(analysis(choice), number=20, plain_share=0.0):
        assert one.args[4].value == chosen_value(number, one.global_size, value)

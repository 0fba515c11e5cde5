"""What the challenges of a fitted form are: odd scalars, sizes between two sides, NDRanges as plans have them."""

import math

import pytest

from llmperf_common.records import Access, Argument, ArgumentKind, SizeRole
from workers.analysis.challenges import (
    LARGEST_SIDE,
    Challenge,
    larger_local_sizes,
    planned_points,
    value_points,
)
from workers.analysis.points import Design


def scalar(position: int, role: SizeRole = SizeRole.NONE) -> Argument:
    return Argument(
        position=position,
        name=f"n{position}",
        kind=ArgumentKind.SCALAR,
        type_name="int",
        scalar_type="int",
        vector_width=1,
        element_bytes=4,
        access=Access.READ,
        is_const=False,
        size_role=role,
    )


def challenge(dims: int, scalars: tuple[Argument, ...], tested: tuple[int, ...] = ()) -> Challenge:
    local = ((1,) * dims,)
    design = Design(
        dims=dims,
        local_sizes=local,
        largest={one.position: 2**20 for one in scalars},
        thresholds=(),
        flags={},
        seed=7,
    )
    return Challenge(design=design, scalars=scalars, tested=tested, local_sizes=local)


@pytest.mark.parametrize("value", [1, 2, 1024, 6, 7, 8, 29_999, 30_000, 30_001])
def test_every_scalar_takes_odd_values_and_what_the_text_compares_with(value):
    points = value_points(challenge(1, (scalar(1), scalar(2)), tested=(7, 30_000)))
    for position in (1, 2):
        alone = [one for one in points if one.scalars[position] == value]
        assert any(one.scalars[3 - position] != value for one in alone)
    assert any(set(one.scalars.values()) == {value} for one in points)
    assert all(one.is_held_out for one in points)


@pytest.mark.parametrize("dims", [2, 3])
def test_scalars_lie_between_two_sides_of_the_ndrange(dims):
    points = value_points(challenge(dims, (scalar(1),)))
    between = [
        one for one in points if min(one.global_size) < one.scalars[1] < max(one.global_size)
    ]
    longest = {one.global_size.index(max(one.global_size)) for one in between}
    assert longest == set(range(dims))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_planned_points_reach_a_hundred_thousand_work_items_and_are_flat_too(dims):
    points = planned_points(challenge(dims, (scalar(1, SizeRole.GUARD_0), scalar(2))))
    items = [math.prod(one.global_size) for one in points]
    assert LARGEST_SIDE / 2 <= max(items) <= 2 * LARGEST_SIDE
    assert any(one.scalars[1] == one.global_size[0] for one in points), "a guard as planned"
    loops = {one.scalars[2] for one in points}
    assert 1 in loops, "loops of planned launches that fit no other way"
    assert max(loops) > 16
    if dims > 1:
        assert any(one.global_size[0] < 3 for one in points)
        assert any(one.global_size[1] < 3 for one in points)


def test_one_scalar_is_twice_another():
    points = value_points(challenge(1, (scalar(1), scalar(2))))
    assert any(one.scalars[1] == 2 * one.scalars[2] > 8 for one in points)
    assert any(one.scalars[2] == 2 * one.scalars[1] > 8 for one in points)


def test_points_are_a_pure_function():
    one = challenge(2, (scalar(1), scalar(2)), tested=(5, 96))
    assert value_points(one) == value_points(one)
    assert planned_points(one) == planned_points(one)


def test_a_kernel_without_scalars_is_challenged_by_its_ndrange_only():
    assert value_points(challenge(1, ())) == ()
    assert planned_points(challenge(1, ()))


@pytest.mark.parametrize(
    ("uses_groups", "required", "max_items", "expected"),
    [
        (True, None, 1024, ((256,), (1024,), (224,), (96,))),
        (True, None, 256, ((256,), (224,), (96,))),
        (False, None, 1024, ()),
        (True, (64,), 1024, ()),
    ],
)
def test_larger_local_sizes_are_those_of_plans_and_of_the_text(
    uses_groups, required, max_items, expected
):
    found = larger_local_sizes(
        1, uses_groups=uses_groups, required=required, max_items=max_items, tested=(7, 96)
    )
    assert found == expected

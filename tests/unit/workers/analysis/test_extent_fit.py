"""The fit of extents: known polynomials are found again exactly, and nothing else is claimed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.analysis.fit import Observations, explain, is_validated
from workers.analysis.points import Design, Point, local_sizes, probe_points
from workers.analysis.polynomials import Basis, Fit, fit

NAMES = ("global_size_0", "local_size_0", "num_groups_0", "n", "m")
IDENTITIES = frozenset({(1, 2)})


def design(**changes) -> Design:
    values = {
        "dims": 1,
        "local_sizes": local_sizes(1, uses_groups=True, required=None, max_items=1024),
        "largest": {3: 2**20, 4: 2**20},
        "thresholds": (),
        "flags": {},
        "seed": 7,
    }
    return Design(**(values | changes))


def rows_of(points: list[Point]) -> np.ndarray:
    return np.array(
        [
            [p.global_size[0], p.local_size[0], p.global_size[0] // p.local_size[0], p.scalars[3], p.scalars[4]]
            for p in points
        ],
        dtype=np.int64,
    )  # fmt: skip


POINTS = list(probe_points(design()))
ROWS = rows_of(POINTS)


def observed(extents, points=POINTS, rows=ROWS) -> Observations:
    return Observations(
        names=NAMES,
        rows=rows,
        extents=np.maximum(np.array(extents, dtype=np.int64), 0),
        tiers=np.array([one.tier for one in points]),
        held_out=np.array([one.is_held_out for one in points]),
        identities=IDENTITIES,
    )


def truth(found) -> np.ndarray:
    values = found.form.values(ROWS)
    return values if found.cap is None else np.minimum(values, found.cap.values(ROWS))


MONOMIALS = Basis(5, IDENTITIES).monomials(range(5), 3, powers=True)


def test_a_column_that_differs_in_one_row_needs_all_rows() -> None:
    rows = np.random.default_rng(5).integers(2, 400, (900, 3))
    rows[:, 2] = 8
    rows[450, 2] = 9
    values = 7 * rows[:, 0] + 3 * rows[:, 1] - 5 * rows[:, 2] + 11
    expected = Fit(constant=11, terms=(((0,), 7), ((1,), 3), ((2,), -5)))
    assert fit(rows, values, [0, 1, 2], Basis(3, frozenset())) == expected


@pytest.mark.parametrize("wrong_row", [None, 0, 17, -1])
def test_a_few_rows_are_solved_first_but_all_must_match(wrong_row: int | None) -> None:
    rows = np.random.default_rng(5).integers(2, 400, (900, 3))
    values = 7 * rows[:, 0] + 3 * rows[:, 1] - 5 * rows[:, 2] + 11
    if wrong_row is not None:
        values[wrong_row] += 1
    found = fit(rows, values, [0, 1, 2], Basis(3, frozenset()))
    expected = Fit(constant=11, terms=(((0,), 7), ((1,), 3), ((2,), -5)))
    assert found == (expected if wrong_row is None else None)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(MONOMIALS), min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from([1, 2, 3, 4, 16, 100_000]), min_size=2, max_size=2),
    st.integers(0, 40),
)
def test_every_sparse_polynomial_is_found_again(monomials, coefficients, constant):
    one = Fit(constant=constant, terms=tuple(zip(monomials, coefficients, strict=False)))
    values = one.values(ROWS)
    found = explain(observed(values))
    assert found is not None
    assert found.is_exact
    assert (truth(found) == values).all()
    assert is_validated(observed(values), found)


@settings(max_examples=40)
@given(
    st.sampled_from([(0,), (1,), (2,), (0, 3), (2, 3)]),
    st.sampled_from([(3,), (4,), (3, 4), (3, 3)]),
    st.integers(1, 4),
    st.integers(-2, 5),
    st.integers(-2, 2),
)
def test_a_guard_is_found_as_the_smaller_of_two(reach, guard, scale, halo, shift):
    one = Fit(constant=halo, terms=((reach, scale),))
    other = Fit(constant=shift, terms=((guard, 1),))
    values = np.minimum(one.values(ROWS), other.values(ROWS))
    found = explain(observed(values))
    assert found is not None
    if found.is_exact:
        assert (truth(found) == np.maximum(values, 0)).all() or (truth(found) <= 0).any()
    assert (np.maximum(truth(found), 0) >= np.maximum(values, 0)).all()


def test_the_form_speaks_of_the_ndrange_and_the_cap_of_scalars():
    found = explain(observed(np.minimum(ROWS[:, 0], ROWS[:, 3])))
    assert found.form.named(NAMES).terms[0].factors == ("global_size_0",)
    assert found.cap.named(NAMES).terms[0].factors == ("n",)


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_never_called_exact(seed):
    values = np.random.default_rng(seed).integers(1, 10_000, len(POINTS))
    found = explain(observed(values))
    assert found is None or not found.is_exact


def test_a_form_that_misses_one_held_out_probe_is_not_exact():
    values = ROWS[:, 0].copy()
    held_out = [index for index, point in enumerate(POINTS) if point.is_held_out]
    values[held_out[-1]] += 1
    found = explain(observed(values))
    assert found is None or not found.is_exact


def test_a_bound_lies_above_every_probe():
    values = np.minimum(ROWS[:, 0], ROWS[:, 3]) * 2 // 3 + 1
    found = explain(observed(values))
    assert found is not None
    assert not found.is_exact
    assert (truth(found) >= values).all()


def test_too_few_rows_determine_nothing():
    rows = ROWS[:4]
    basis = Basis(5, IDENTITIES)
    assert fit(rows, rows[:, 0] * 3 + rows[:, 3], [0, 1, 2, 3, 4], basis) is None


def test_a_constant_extent_needs_no_size():
    found = explain(observed(np.full(len(POINTS), 25)))
    assert found.form == Fit(constant=25, terms=())


def test_equal_designs_give_equal_points_and_other_seeds_others():
    assert probe_points(design()) == probe_points(design())
    assert probe_points(design()) != probe_points(design(seed=8))


def test_points_lie_on_both_sides_of_everything():
    points = probe_points(design(thresholds=(300,)))
    for position in (3, 4):
        assert any(p.scalars[position] > p.global_size[0] for p in points)
        assert any(p.scalars[position] < p.global_size[0] for p in points)
        assert any(p.scalars[position] < p.local_size[0] for p in points)
        assert any(p.scalars[position] < p.global_size[0] // p.local_size[0] for p in points)
        assert any(p.scalars[position] > 300 for p in points)
        assert any(p.scalars[position] < 300 for p in points)
    assert any(p.scalars[3] < p.global_size[0] < p.scalars[4] for p in points)
    assert any(p.scalars[4] < p.global_size[0] < p.scalars[3] for p in points)
    assert {p.local_size for p in points} >= {(8,), (12,), (160,)}


def test_held_out_points_are_larger_than_any_small_one():
    points = probe_points(design())
    held_out = [p.global_size[0] for p in points if p.is_held_out]
    fitted = [p.global_size[0] for p in points if p.tier == "below"]
    assert len(held_out) >= 4
    assert max(held_out) >= 4 * sorted(fitted)[len(fitted) // 2]


def test_the_local_size_is_fixed_where_it_cannot_matter_or_is_required():
    assert local_sizes(2, uses_groups=False, required=None, max_items=256) == ((1, 1),)
    assert local_sizes(2, uses_groups=True, required=(16, 8, 1), max_items=256) == ((16, 8),)
    assert (300,) in local_sizes(
        1, uses_groups=True, required=None, max_items=1024, thresholds=(300,)
    )


def test_small_values_that_a_scalar_is_tested_for_are_tried():
    points = probe_points(design(flags={3: (0, 1)}))
    values = {p.scalars[3] for p in points}
    assert {0, 1} < values

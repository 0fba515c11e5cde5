"""The content rule of generated inputs: ranges, purity, packing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import Access, Argument, ArgumentKind, Leaf
from workers.plan.inputs import (
    INTEGER_LIMIT,
    SCALAR_TYPES,
    FillKind,
    FillSpec,
    clamp_scalar,
    fill_spec,
    fill_specs,
    pack_scalar,
    reference_bytes,
    reference_fill,
    stream_key,
)
from workers.plan.mixing import mix32


def buffer_argument(scalar_type: str, *, position: int = 0, width: int = 1) -> Argument:
    lanes = 4 if width == 3 else width
    return Argument(
        position=position,
        name="a",
        kind=ArgumentKind.GLOBAL_BUFFER,
        type_name=scalar_type,
        scalar_type=scalar_type,
        vector_width=width,
        element_bytes=lanes * SCALAR_TYPES[scalar_type].dtype.itemsize,
        access=Access.READ,
    )


@pytest.mark.parametrize("kind", list(FillKind))
def test_values_stay_in_their_range_and_use_it(kind: FillKind) -> None:
    values = reference_fill(
        FillSpec(kind=kind, key=stream_key(seed=3, position=1), num_scalars=9999)
    )
    as_float = values.astype(np.float64)
    assert as_float.min() >= 0
    if kind.startswith("float"):
        assert as_float.max() < 1
        assert abs(as_float.mean() - 0.5) < 0.02
        assert np.isfinite(as_float).all()
    elif kind is FillKind.BOOL:
        assert set(values.tolist()) == {0, 1}
    else:
        assert set(values.tolist()) == set(range(INTEGER_LIMIT))


@given(st.integers(0, 2**63), st.integers(0, 60), st.integers(1, 300), st.sampled_from(FillKind))
def test_an_element_depends_on_seed_position_and_index_only(
    seed: int, position: int, count: int, kind: FillKind
) -> None:
    key = stream_key(seed=seed, position=position)
    short = reference_fill(FillSpec(kind=kind, key=key, num_scalars=count))
    longer = reference_fill(FillSpec(kind=kind, key=key, num_scalars=count + 7))
    assert short.tobytes() == longer[:count].tobytes()


RULES = st.builds(
    Contents,
    rule=st.sampled_from([one for one in ContentsRule if one is not ContentsRule.SIGNED]),
    limit=st.integers(1, 2**33),
)  # fmt: skip


@given(
    RULES, st.sampled_from(["char", "uchar", "short", "int", "uint", "ulong"]), st.integers(1, 500)
)
def test_content_rules_stay_below_their_limit_and_within_the_type(
    contents: Contents, scalar_type: str, count: int
) -> None:
    argument = buffer_argument(scalar_type)
    spec = fill_spec(argument, elements=count, seed=count, contents=contents)
    assert spec.contents is not None
    info = np.iinfo(SCALAR_TYPES[scalar_type].dtype)
    assert spec.contents.limit == min(contents.limit, int(info.max) + 1, 2**32)
    values = reference_fill(spec).view(SCALAR_TYPES[scalar_type].dtype).astype(object)
    assert 0 <= values.min() <= values.max() < contents.limit
    if contents.rule is ContentsRule.PREFIX:
        steps = np.diff(values)
        assert (steps >= 0).all(), "row offsets must not decrease"
        assert (steps <= 2 * spec.contents.limit / count + 1).all()


def test_bounded_contents_use_their_whole_range() -> None:
    contents = Contents(rule=ContentsRule.BOUNDED, limit=1000)
    spec = fill_spec(buffer_argument("int"), elements=50_000, seed=1, contents=contents)
    assert set(reference_fill(spec).tolist()) == set(range(1000))


def test_row_offsets_go_from_about_0_to_about_the_limit() -> None:
    contents = Contents(rule=ContentsRule.PREFIX, limit=16_000)
    values = reference_fill(
        fill_spec(buffer_argument("int"), elements=1000, seed=1, contents=contents)
    )
    assert values[0] < 16
    assert values[-1] >= 16_000 - 16
    lengths = np.diff(values.astype(np.int64))
    assert 14 < lengths.mean() < 18
    assert len(set(lengths.tolist())) > 10, "rows differ in length"


def test_a_content_rule_is_for_integers() -> None:
    contents = Contents(rule=ContentsRule.BOUNDED, limit=5)
    for scalar_type in ("float", "half", "bool"):
        spec = fill_spec(buffer_argument(scalar_type), elements=4, seed=0, contents=contents)
        assert spec.contents is None


def test_members_have_streams_of_their_own_and_padding_is_left_alone() -> None:
    argument = dataclasses.replace(
        buffer_argument("int"),
        scalar_type="",
        element_bytes=16,
        leaves=(
            Leaf(offset_bytes=0, scalar_type="int", count=1),
            Leaf(offset_bytes=4, scalar_type="float", count=2),
        ),
    )
    first, second = fill_specs(argument, elements=10, seed=3)
    assert first.key != second.key
    assert (first.num_scalars, second.num_scalars) == (10, 20)
    assert (first.kernel_name, second.kernel_name) == ("fill_int32_leaf", "fill_float32_leaf")
    rows = reference_bytes(argument, elements=10, seed=3).reshape(10, 16)
    assert (rows[:, :4].copy().view(np.uint32).ravel() == reference_fill(first)).all()
    assert (rows[:, 4:12].copy().view(np.float32).ravel() == reference_fill(second)).all()
    assert not rows[:, 12:].any()
    packed = dataclasses.replace(argument, element_bytes=13)
    with pytest.raises(ValueError, match="not aligned"):
        fill_specs(packed, elements=1, seed=0)


def test_seeds_and_positions_give_other_streams() -> None:
    keys = {stream_key(seed=s, position=p) for s in (*range(50), 2**32, 2**40) for p in range(50)}
    assert len(keys) == 52 * 50


def test_mix32_has_no_collision_on_a_range() -> None:
    assert len({mix32(value) for value in range(20_000)}) == 20_000


def test_a_three_vector_has_four_lanes() -> None:
    assert fill_spec(buffer_argument("float", width=3), elements=10, seed=0).num_scalars == 40


def test_unknown_types_are_refused() -> None:
    odd = dataclasses.replace(buffer_argument("float"), scalar_type="struct node")
    with pytest.raises(ValueError, match="no fill rule"):
        fill_spec(odd, elements=1, seed=0)
    with pytest.raises(ValueError, match="cannot pass"):
        pack_scalar(odd, 1)


@pytest.mark.parametrize(
    ("scalar_type", "width", "value", "num_bytes"),
    [("int", 1, -3, 4), ("uchar", 1, 255, 1), ("float", 4, 0.5, 16), ("double", 1, 1e300, 8),
     ("ulong", 1, 2**64 - 1, 8), ("half", 1, 0.5, 2), ("int", 3, 7, 16), ("short", 8, 1, 16)],
)  # fmt: skip
def test_packed_scalars_have_the_width_opencl_expects(
    scalar_type: str, width: int, value: float, num_bytes: int
) -> None:
    packed = pack_scalar(buffer_argument(scalar_type, width=width), value)
    assert packed.nbytes == num_bytes
    assert np.asarray(packed).reshape(-1)[0] == value


@pytest.mark.parametrize(("scalar_type", "value"), [("char", 128), ("uint", -1), ("int", 0.5)])
def test_values_that_do_not_fit_are_refused(scalar_type: str, value: float) -> None:
    with pytest.raises(ValueError, match="argument 'a'"):
        pack_scalar(buffer_argument(scalar_type), value)


@given(st.sampled_from(sorted(SCALAR_TYPES)), st.integers(-(2**70), 2**70))
def test_clamped_values_can_be_packed(scalar_type: str, value: int) -> None:
    pack_scalar(buffer_argument(scalar_type), clamp_scalar(scalar_type, value))


@pytest.mark.parametrize("scalar_type", ["float", "double", "half"])
def test_signed_floats_have_both_signs_and_magnitudes_that_neither_vanish_nor_explode(
    scalar_type: str,
) -> None:
    contents = Contents(rule=ContentsRule.SIGNED, limit=2)
    argument = buffer_argument(scalar_type)
    values = reference_fill(fill_spec(argument, elements=9999, seed=3, contents=contents))
    exact = values.astype(np.float64)
    assert np.abs(exact).min() >= 0.5
    assert np.abs(exact).max() < 2
    assert np.abs(exact).max() > 1.98
    assert 0.45 < (exact < 0).mean() < 0.55
    assert abs(np.abs(exact).mean() - 1.25) < 0.02


@pytest.mark.parametrize("scalar_type", ["float", "double", "half", "int", "uchar"])
def test_flags_are_whole_numbers_below_their_limit(scalar_type: str) -> None:
    contents = Contents(rule=ContentsRule.FLAGS, limit=4)
    spec = fill_spec(buffer_argument(scalar_type), elements=999, seed=3, contents=contents)
    assert set(reference_fill(spec).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("rule", [ContentsRule.BOUNDED, ContentsRule.PREFIX])
def test_rules_of_indices_leave_floats_as_they_are(rule: ContentsRule) -> None:
    contents = Contents(rule=rule, limit=4)
    assert (
        fill_spec(buffer_argument("float"), elements=9, seed=3, contents=contents).contents is None
    )

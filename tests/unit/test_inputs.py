"""The content rule of generated inputs: ranges, purity, packing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.records import Access, Argument, ArgumentKind
from workers.inputs import (
    INTEGER_LIMIT,
    SCALAR_TYPES,
    FillKind,
    FillSpec,
    clamp_scalar,
    fill_spec,
    mix32,
    pack_scalar,
    reference_fill,
    stream_key,
)


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

"""Batches for prediction: each launch once, few shapes, no more than a forward pass may have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories.packing_cases import make_tokens, realistic, small_tokens
from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.prediction import pack_batches_for, query_batches_for
from trainer.regressor_config import PackingConfig

SMALL = PackingConfig(lengths=(32, 64), tokens_per_step=128, tokens_per_pass=128)
BOTH = pytest.mark.parametrize("batches_for", [pack_batches_for, query_batches_for])


@BOTH
@settings(max_examples=40, deadline=None)
@given(tokens=small_tokens(), data=st.data())
def test_each_launch_is_predicted_once(
    batches_for: Callable[..., object], tokens: Tokens, data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    rows = np.flatnonzero(wanted)
    batches = list(batches_for(tokens, rows, SMALL))
    found = np.concatenate([batch.row.ravel() for batch in batches] or [rows])
    assert sorted(found[found >= 0].tolist()) == rows.tolist()
    again = list(batches_for(tokens, rows[::-1], SMALL))
    assert [batch.row.tolist() for batch in batches] == [batch.row.tolist() for batch in again]


def test_packs_of_a_sweep_have_few_shapes_and_bounded_passes() -> None:
    tokens = make_tokens([300], [25] * 1000, [0] * 1000)
    config = PackingConfig(tokens_per_pass=8192)
    shapes = [batch.ids.shape for batch in pack_batches_for(tokens, np.arange(1000), config)]
    assert shapes == [(4, 2048)] * 4
    mixed = realistic(30)
    shapes = [
        (*batch.ids.shape, batch.row.shape[1])
        for batch in pack_batches_for(mixed, np.arange(len(mixed)), config)
    ]
    assert len(set(shapes)) <= 2
    assert all(packs * length <= 8192 for packs, length, _ in shapes)


def test_queries_of_a_sweep_stay_within_a_pass() -> None:
    tokens = realistic(30)
    config = PackingConfig()
    for batch in query_batches_for(tokens, np.arange(len(tokens)), config):
        assert batch.prefix_ids.size + batch.suffix_ids.size <= config.tokens_per_pass


@BOTH
def test_a_launch_that_is_too_long_is_refused(batches_for: Callable[..., object]) -> None:
    tokens = make_tokens([200], [10], [0])
    with pytest.raises(BadInput, match="210 tokens"):
        list(batches_for(tokens, np.arange(1), SMALL))

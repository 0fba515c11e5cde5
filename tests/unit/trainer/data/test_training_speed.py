"""The recipes of the training benchmark read the same launches and say the same about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.models.training_speed.padded import _evenly_spread
from benchmarks.models.training_speed.recipes import Recipe, packed, padded
from trainer.data.token_store import Targets, TokenStore, open_token_store, write_token_store
from trainer.data.tokens import Tokens

KERNELS, LAUNCHES = 4, 6


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    random = np.random.default_rng(0)
    prefix, suffix = random.integers(20, 90, KERNELS), random.integers(4, 12, KERNELS * LAUNCHES)
    rows = KERNELS * LAUNCHES
    tokens = Tokens(
        prefix_ids=random.integers(1, 500, prefix.sum()).astype(np.int32),
        prefix_start=np.concatenate(([0], np.cumsum(prefix))),
        suffix_ids=random.integers(1, 500, suffix.sum()).astype(np.int32),
        suffix_values=np.zeros(suffix.sum()),
        suffix_start=np.concatenate(([0], np.cumsum(suffix))),
        group=np.repeat(np.arange(KERNELS), LAUNCHES),
    )
    targets = Targets(
        features=np.zeros((rows, 1)),
        log2_ns=np.arange(rows) / 2 + 10,
        offset_log2_ns=np.zeros(rows),
        weight=np.ones(rows),
        is_validation=np.repeat(np.arange(KERNELS), LAUNCHES) == 1,
        family=np.repeat(np.arange(KERNELS), LAUNCHES),
    )
    write_token_store(tmp_path / "store", tokens=tokens, targets=targets)
    return open_token_store(tmp_path / "store")


def test_every_recipe_trains_each_launch_once_an_epoch_and_predicts_it_alike(store: TokenStore):
    device = torch.device("cpu")
    train = LAUNCHES * (KERNELS - 1)
    ours = packed(store, "toy", device, configs=4, tokens=2048)
    theirs = padded(store, "toy", device, is_tuned=True, micro_batch=1, launches_per_step=train)
    torch.manual_seed(0)
    nn.init.normal_(ours.model.head.output.weight)
    theirs.model.head.load_state_dict(ours.model.head.state_dict())
    said = [predictions(ours, steps=2), predictions(theirs, steps=1)]
    assert len(said[0]) == train
    assert said[0].keys() == said[1].keys()
    differences = [abs(said[0][target] - said[1][target]) for target in said[0]]
    assert np.std(list(said[0].values())) > 0.1
    assert max(differences) <= 1e-4


def test_a_tuned_recipe_pads_less_and_counts_the_same_tokens(store: TokenStore):
    device = torch.device("cpu")
    recipes = [
        padded(store, "toy", device, is_tuned=tuned, micro_batch=2, launches_per_step=18)
        for tuned in (False, True)
    ]
    released, tuned = [list(one.source.passes(1, 0, 1).passes) for one in recipes]
    assert {one.batch.ids.shape[1] for one in released} == {2048}
    assert all(one.batch.ids.shape[1] % 64 == 0 for one in tuned)
    assert max(one.batch.ids.shape[1] for one in tuned) <= 128
    for sums in ("num_tokens", "num_launches", "flops"):
        assert sum(getattr(one, sums) for one in released) == sum(
            getattr(one, sums) for one in tuned
        )
    assert sum(one.num_tokens for one in tuned) == sum(
        int(one.batch.present.sum()) for one in tuned
    )
    held_out = sum(one.num_launches for one in recipes[1].validation())
    assert held_out == LAUNCHES


def predictions(recipe: Recipe, *, steps: int) -> dict[float, float]:
    """Return what the model says, by the launch's target."""
    recipe.model.eval()
    found: dict[float, float] = {}
    with torch.no_grad():
        for step in range(1, steps + 1):
            for one in recipe.source.passes(step, 0, 1).passes:
                said = recipe.model(one.batch).log2_ns[one.weight > 0]
                targets = one.log2_ns[one.weight > 0]
                assert not found.keys() & set(targets.tolist())
                found.update(zip(targets.tolist(), said.tolist(), strict=True))
    return found


def test_a_few_steps_of_the_tuned_recipe_have_launches_of_all_lengths():
    order = _evenly_spread(64, start=0.3)
    assert sorted(order) == list(range(64))
    for first in (4, 8, 16):
        gaps = np.diff(np.sort(order[:first]))
        assert gaps.max() <= 3 * 64 / first

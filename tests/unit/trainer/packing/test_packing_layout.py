"""Packs and queries as arrays, against references that are slow and obvious."""

from __future__ import annotations

import runpy
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.factories.packing_cases import (
    launches_by_pack,
    make_tokens,
    realistic,
    same_packs,
    small_tokens,
)
from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.batch import PackBatch, QueryBatch
from trainer.packing.groups import launches_of
from trainer.packing.layout import pack_batch
from trainer.packing.packs import Packs, empty_packs, joined
from trainer.packing.plan import pack_shapes, plan_epoch
from trainer.packing.queries import (
    MAX_BUCKETS,
    plan_query_epoch,
    query_batch,
    query_packs_for,
    query_shape,
)
from trainer.packing.schedule import pack_schedule, query_schedule
from trainer.regressor_config import PackingConfig

SMALL = PackingConfig(
    lengths=(32, 64), configs_per_kernel=4, tokens_per_step=192, tokens_per_pass=128
)
FEW = settings(max_examples=60, deadline=None)


def prefix_of(tokens: Tokens, kernel: int) -> list[int]:
    return tokens.prefix_ids[tokens.prefix_start[kernel] : tokens.prefix_start[kernel + 1]].tolist()


def suffix_of(tokens: Tokens, row: int) -> list[tuple[int, float]]:
    here = slice(tokens.suffix_start[row], tokens.suffix_start[row + 1])
    return list(
        zip(tokens.suffix_ids[here].tolist(), tokens.suffix_values[here].tolist(), strict=True)
    )


def slow_batch(packs: Packs, tokens: Tokens, capacity: int) -> PackBatch:
    """One token after the other."""
    shape = (len(packs), int(packs.length[0]))
    ids, position, suffix = (np.zeros(shape, np.int32) for _ in range(3))
    values, kernel = np.zeros(shape), np.full(shape, -1, np.int32)
    query = np.zeros((len(packs), capacity), np.int32)
    row = np.full((len(packs), capacity), -1, np.int64)
    for pack, parts in enumerate(launches_by_pack(packs)):
        at = 0
        number = 0
        for part, (code, launches) in enumerate(parts):
            prefix = prefix_of(tokens, code)
            for place, token in enumerate(prefix):
                ids[pack, at], position[pack, at], kernel[pack, at] = token, place, part
                at += 1
            for launch in launches:
                number += 1
                for place, (token, value) in enumerate(suffix_of(tokens, launch)):
                    ids[pack, at], values[pack, at] = token, value
                    position[pack, at] = len(prefix) + place
                    kernel[pack, at], suffix[pack, at] = part, number
                    at += 1
                query[pack, number - 1], row[pack, number - 1] = at - 1, launch
    return PackBatch(
        ids=ids,
        values=values,
        position=position,
        kernel=kernel,
        suffix=suffix,
        query=query,
        row=row,
    )


def assert_equal(one: PackBatch | QueryBatch, other: PackBatch | QueryBatch) -> None:
    for name in type(one).__slots__:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype, name
        assert left.shape == right.shape, name
        assert np.array_equal(left, right), name


@FEW
@given(tokens=small_tokens())
def test_a_batch_is_as_the_reference_lays_it_out(tokens: Tokens) -> None:
    launches = launches_of(tokens, np.arange(len(tokens)), 64)
    packs = plan_epoch(launches, SMALL, seed=0, epoch=0).packs
    shapes = pack_shapes(launches, SMALL)
    for length in np.unique(packs.length).tolist():
        capacity = shapes[length].launches
        some = packs.take(np.flatnonzero(packs.length == length))
        padded = joined([empty_packs(length, 1), some, empty_packs(length, 2)])
        batch = pack_batch(padded, tokens, num_launches=capacity)
        assert_equal(batch, slow_batch(padded, tokens, capacity))
        assert np.all(batch.row[[0, -1, -2]] == -1)
        assert np.all(batch.kernel[[0, -1, -2]] == -1)


def seen(batch: PackBatch, pack: int) -> np.ndarray:
    """Which token may attend to which, by the words of ``PackBatch``."""
    kernel, suffix = batch.kernel[pack], batch.suffix[pack]
    place = np.arange(len(kernel))
    earlier = place[None, :] <= place[:, None]
    same = (kernel[None, :] == kernel[:, None]) & (kernel[:, None] >= 0)
    readable = (suffix[None, :] == 0) | (suffix[None, :] == suffix[:, None])
    return (earlier & same & readable) | np.eye(len(kernel), dtype=bool)


@FEW
@given(tokens=small_tokens())
def test_a_query_sees_its_prompt_and_nothing_else(tokens: Tokens) -> None:
    """What the last token of a launch attends to is its prefix and suffix, at the positions they have alone."""
    launches = launches_of(tokens, np.arange(len(tokens)), 64)
    packs = plan_epoch(launches, SMALL, seed=0, epoch=0).packs
    for length in np.unique(packs.length).tolist():
        batch = pack_batch(packs.take(np.flatnonzero(packs.length == length)), tokens)
        for pack, slot in zip(*np.nonzero(batch.row >= 0), strict=True):
            row = int(batch.row[pack, slot])
            mask = seen(batch, pack)
            visible = np.flatnonzero(mask[batch.query[pack, slot]])
            alone = [(token, 0.0) for token in prefix_of(tokens, int(tokens.group[row]))]
            alone += suffix_of(tokens, row)
            read = zip(batch.ids[pack, visible], batch.values[pack, visible], strict=True)
            assert list(read) == alone
            assert batch.position[pack, visible].tolist() == list(range(len(alone)))
            # And each of these tokens reads what it would read alone: all of them before it.
            assert np.array_equal(mask[np.ix_(visible, visible)], np.tri(len(visible), dtype=bool))
            assert mask[visible].sum() == len(visible) * (len(visible) + 1) // 2


def test_what_does_not_fit_a_batch_is_refused() -> None:
    tokens = make_tokens([20, 30], [5] * 4, [0, 0, 0, 1])
    launches = launches_of(tokens, np.arange(4), 64)
    packs = plan_epoch(launches, SMALL, seed=0, epoch=0).packs
    with pytest.raises(ValueError, match="the same length"):
        pack_batch(joined([packs, empty_packs(7, 1)]), tokens)
    with pytest.raises(ValueError, match="the same length"):
        pack_batch(packs.take(np.zeros(0, dtype=np.int64)), tokens)
    one = packs.take(np.flatnonzero(packs.num_launches >= 2)[:1])
    with pytest.raises(ValueError, match="its capacity is 1"):
        pack_batch(one, tokens, num_launches=1)
    with pytest.raises(ValueError, match="more than 64 tokens"):
        pack_batch(one, make_tokens([60, 60], [5] * 4, [0, 0, 0, 1]))


def test_a_run_has_one_shape_for_each_pack_length() -> None:
    tokens = realistic(150)
    rows = np.arange(len(tokens))
    config = PackingConfig(tokens_per_pass=8192, configs_per_kernel=12)
    for world_size in (1, 3):
        schedule = pack_schedule(
            tokens, train=rows[100:], validation=rows[:100], config=config, seed=0
        )
        shapes = set()
        for step in range(0, 40, 3):
            for batch in schedule.batches(step, rank=world_size - 1, world_size=world_size):
                shapes.add((batch.ids.shape, batch.row.shape))
        for packs in schedule.validation_passes(rank=0, world_size=world_size):
            batch = schedule.batch(packs)
            shapes.add((batch.ids.shape, batch.row.shape))
        assert len(shapes) == len(config.lengths)


def slow_queries(packs: Packs, tokens: Tokens, capacity: int, width: int) -> QueryBatch:
    g, t = len(packs), int(packs.length[0])
    batch = QueryBatch(
        prefix_ids=np.zeros((g, t), np.int32),
        prefix_length=np.zeros(g, np.int32),
        suffix_ids=np.zeros((g, capacity, width), np.int32),
        suffix_values=np.zeros((g, capacity, width)),
        suffix_length=np.zeros((g, capacity), np.int32),
        row=np.full((g, capacity), -1, np.int64),
    )
    for pack, parts in enumerate(launches_by_pack(packs)):
        for kernel, launches in parts:
            prefix = prefix_of(tokens, kernel)
            batch.prefix_ids[pack, : len(prefix)] = prefix
            batch.prefix_length[pack] = len(prefix)
            for slot, row in enumerate(launches):
                suffix = suffix_of(tokens, row)
                batch.suffix_ids[pack, slot, : len(suffix)] = [token for token, _ in suffix]
                batch.suffix_values[pack, slot, : len(suffix)] = [value for _, value in suffix]
                batch.suffix_length[pack, slot] = len(suffix)
                batch.row[pack, slot] = row
    return batch


@FEW
@given(tokens=small_tokens())
def test_queries_are_as_the_reference_lays_them_out(tokens: Tokens) -> None:
    launches = launches_of(tokens, np.arange(len(tokens)), 64)
    shape = query_shape(launches, SMALL)
    plan = plan_query_epoch(launches, shape, SMALL, seed=1, epoch=2)
    assert sorted(plan.packs.launch.tolist()) == list(range(len(tokens)))
    assert sum(len(plan.step(index)) for index in range(len(plan))) == len(plan.packs)
    assert min(len(plan.step(index)) for index in range(len(plan))) > 0
    assert shape.launches <= 4
    assert len(shape.prefix_lengths) <= MAX_BUCKETS
    again = plan_query_epoch(launches, shape, SMALL, seed=1, epoch=2)
    assert same_packs(plan.packs, again.packs)
    for length in np.unique(plan.packs.length).tolist():
        some = plan.packs.take(np.flatnonzero(plan.packs.length == length))
        padded = joined([some, empty_packs(length, 1)])
        batch = query_batch(padded, tokens, shape)
        assert_equal(batch, slow_queries(padded, tokens, shape.launches, shape.suffix))


def test_steps_of_queries_are_worth_their_tokens_and_mix_kernels() -> None:
    tokens = realistic(300)
    launches = launches_of(tokens, np.arange(len(tokens)), 2048)
    config = PackingConfig()
    shape = query_shape(launches, config)
    plan = plan_query_epoch(launches, shape, config, seed=0, epoch=0)
    steps = [plan.step(index) for index in range(len(plan))]
    used = [int(step.tokens(tokens.prefix_lengths, tokens.suffix_lengths).sum()) for step in steps]
    assert max(used) <= config.tokens_per_step + 1640 / 2
    assert min(used) >= 0.85 * config.tokens_per_step
    assert min(len(set(step.kernel.tolist())) for step in steps) >= 16
    other = plan_query_epoch(launches, shape, config, seed=0, epoch=1)
    assert not same_packs(plan.packs, other.packs)


def test_padded_lengths_are_the_best_there_are() -> None:
    """No other choice of four lengths, of those that occur, pads less; checked against all of them."""
    tokens = realistic(60)
    launches = launches_of(tokens, np.arange(len(tokens)), 2048)
    shape = query_shape(launches, PackingConfig())
    groups = plan_query_epoch(launches, shape, PackingConfig(), seed=0, epoch=0).packs
    prefixes = tokens.prefix_lengths[groups.kernel]
    possible = sorted({-(-int(one) // 32) * 32 for one in prefixes})
    least = min(
        int(np.array(chosen)[np.searchsorted(chosen, prefixes)].sum())
        for chosen in combinations(possible, 4)
        if chosen[-1] == possible[-1]
    )
    assert groups.length.sum() == least


def test_resume_of_queries_at_another_world_size_reads_the_same_launches() -> None:
    tokens = realistic(60)
    rows = np.arange(len(tokens))
    halves = {"train": rows[300:], "validation": rows[:300]}
    config = PackingConfig(tokens_per_pass=4096)
    before = query_schedule(tokens, **halves, config=config, seed=3)
    lengths = set()
    for world_size in (1, 2, 5):
        after = query_schedule(tokens, **halves, config=config, seed=3)
        for step in (17, 3):
            passes = [
                after.passes(step, rank=rank, world_size=world_size) for rank in range(world_size)
            ]
            shapes = [[(len(one), int(one.length[0])) for one in mine] for mine in passes]
            assert all(shape == shapes[0] for shape in shapes)
            together = joined([one for mine in passes for one in mine])
            wanted = before.step_packs(step)
            assert sorted(together.launch.tolist()) == sorted(wanted.launch.tolist())
            for batch in after.batches(step, world_size=world_size):
                assert batch.prefix_ids.size + batch.suffix_ids.size <= config.tokens_per_pass
                lengths.add(batch.prefix_ids.shape[1:] + batch.suffix_ids.shape[1:])
        validation = [
            one
            for rank in range(world_size)
            for one in after.validation_passes(rank=rank, world_size=world_size)
        ]
        assert sorted(joined(validation).launch.tolist()) == halves["validation"].tolist()
    assert len(lengths) <= MAX_BUCKETS


def test_a_sweep_encodes_its_kernel_as_seldom_as_a_pass_allows() -> None:
    tokens = make_tokens([300, 40], [25] * 1000 + [10] * 3, [0] * 1000 + [1] * 3)
    packs, shape = query_packs_for(tokens, np.arange(1003), PackingConfig())
    assert np.bincount(packs.kernel).tolist() == [2, 1]
    assert shape.launches == 500
    assert sorted(packs.launch.tolist()) == list(range(1003))
    batch = query_batch(packs.take(np.array([0])), tokens, shape)
    assert batch.suffix_ids.shape == (1, 500, 32)
    with pytest.raises(BadInput, match="longest pack"):
        query_packs_for(tokens, np.arange(1003), PackingConfig(lengths=(256,), tokens_per_pass=256))
    with pytest.raises(ValueError, match="exceeds its capacity"):
        query_batch(empty_and_full(packs), tokens, shape)


def empty_and_full(packs: Packs) -> Packs:
    """Two kernels in one pack, which queries do not know."""
    return Packs(
        length=packs.length[:1],
        part_start=np.array([0, 2]),
        kernel=packs.kernel[:2],
        launch_start=packs.launch_start[:3],
        launch=packs.launch[: packs.launch_start[2]],
    )


def test_the_figure_shows_what_a_batch_is() -> None:
    """The drawing in the documents is made from a real batch and is not stale."""
    script = runpy.run_path(str(Path(__file__).parents[4] / "docs" / "figures" / "packing.py"))
    assert script["FIGURE"].read_text(encoding="utf-8") == script["figure"]()

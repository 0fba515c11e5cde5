"""The plan of an epoch: each launch once, the same again by seed and epoch, full packs, mixed steps."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories.packing_cases import (
    launches_by_pack,
    make_tokens,
    realistic,
    same_packs,
    small_tokens,
)
from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.groups import launches_of, shuffled_groups
from trainer.packing.mixing import MIN_KERNELS
from trainer.packing.packs import Packs, empty_packs, joined
from trainer.packing.plan import (
    EpochPlan,
    pack_shapes,
    packs_for,
    plan_epoch,
    validation_packs,
)
from trainer.packing.ranks import packs_per_pass, rank_passes
from trainer.packing.schedule import pack_schedule
from trainer.packing.shuffle import random_keys, random_shares
from trainer.regressor_config import PackingConfig

SMALL = PackingConfig(
    lengths=(32, 64), configs_per_kernel=4, tokens_per_step=192, tokens_per_pass=128
)
FEW = settings(max_examples=60, deadline=None)


def all_rows(tokens: Tokens) -> np.ndarray:
    return np.arange(len(tokens))


def plan_of(
    tokens: Tokens, config: PackingConfig = SMALL, seed: int = 0, epoch: int = 0
) -> EpochPlan:
    launches = launches_of(tokens, all_rows(tokens), config.lengths[-1])
    return plan_epoch(launches, config, seed=seed, epoch=epoch)


def check_packs(packs: Packs, tokens: Tokens, rows: np.ndarray) -> None:
    """Each row once, with its own kernel, no kernel twice in a pack, no pack overfull."""
    assert sorted(packs.launch.tolist()) == sorted(rows.tolist())
    for length, parts in zip(packs.length.tolist(), launches_by_pack(packs), strict=True):
        kernels = [kernel for kernel, _ in parts]
        assert len(set(kernels)) == len(kernels)
        used = 0
        for kernel, launches in parts:
            assert launches
            assert all(tokens.group[row] == kernel for row in launches)
            used += int(tokens.prefix_lengths[kernel])
            used += sum(int(tokens.suffix_lengths[row]) for row in launches)
        assert used <= length
    assert np.all(packs.tokens(tokens.prefix_lengths, tokens.suffix_lengths) <= packs.length)


@FEW
@given(tokens=small_tokens(), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_each_launch_once(tokens: Tokens, seed: int, epoch: int) -> None:
    plan = plan_of(tokens, seed=seed, epoch=epoch)
    check_packs(plan.packs, tokens, all_rows(tokens))
    assert max(len(launches) for pack in launches_by_pack(plan.packs) for _, launches in pack) <= 4
    assert plan.step_start[0] == 0
    assert plan.step_start[-1] == len(plan.packs)
    for index in range(len(plan)):
        step = plan.step(index)
        assert len(set(step.length.tolist())) == 1
        assert 1 <= len(step) <= SMALL.tokens_per_step // step.length[0]
    assert same_packs(plan.packs, joined([plan.step(index) for index in range(len(plan))]))


@FEW
@given(tokens=small_tokens(), seed=st.integers(0, 5))
def test_a_plan_is_the_same_again(tokens: Tokens, seed: int) -> None:
    one, other = plan_of(tokens, seed=seed), plan_of(tokens, seed=seed)
    assert same_packs(one.packs, other.packs)
    assert one.step_start.tolist() == other.step_start.tolist()


def test_a_plan_is_the_same_on_every_machine_and_release() -> None:
    """Written down once: a plan that changes with NumPy or a release would break every resume."""
    assert random_keys(0).tolist() == [0xE220A8397B1DCDAF]  # SplitMix64's first number of seed 0
    assert random_keys(0, 1, np.array([2, 3])).tolist() == [
        17650578182555822980,
        13661839719554123633,
    ]
    plan = plan_of(make_tokens([20, 9, 12], [4] * 12, [0, 1, 2] * 4), seed=7, epoch=3)
    assert launches_by_pack(plan.packs) == [
        [(0, [6, 9, 3, 0]), (2, [5, 8, 11, 2])],
        [(1, [10, 4, 7, 1])],
    ]


def test_seeds_and_epochs_differ() -> None:
    tokens = realistic(60)
    config = PackingConfig()
    plans = [plan_of(tokens, config, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for one, other in itertools.combinations(plans, 2):
        assert not same_packs(one.packs, other.packs)
        together = [
            {frozenset(launches) for pack in launches_by_pack(plan.packs) for _, launches in pack}
            for plan in (one, other)
        ]
        assert len(together[0] & together[1]) < len(together[0]) / 3


def test_random_shares_are_spread_evenly() -> None:
    shares = random_shares(3, np.arange(20_000))
    counts, _ = np.histogram(shares, bins=20, range=(0, 1))
    assert counts.min() > 850
    assert counts.max() < 1150
    assert abs(np.corrcoef(shares[:-1], shares[1:])[0, 1]) < 0.03


def test_launches_of_a_kernel_are_shuffled_evenly() -> None:
    """Over many epochs each launch is first in its group about equally often."""
    tokens = make_tokens([5], [3] * 8, [0] * 8)
    launches = launches_of(tokens, all_rows(tokens), 64)
    first = np.zeros(8)
    for epoch in range(800):
        groups = shuffled_groups(launches, most=4, longest=64, seed=0, epoch=epoch)
        first[groups.launch[groups.start]] += 1
    assert first.sum() == 1600
    assert first.min() > 150
    assert first.max() < 250


def test_kernels_come_in_another_order_in_each_epoch() -> None:
    tokens = make_tokens([5] * 40, [3] * 40, range(40))
    launches = launches_of(tokens, all_rows(tokens), 64)
    places = np.array(
        [
            np.argsort(shuffled_groups(launches, most=4, longest=64, seed=seed, epoch=epoch).kernel)
            for seed in (0, 1)
            for epoch in range(100)
        ]
    )
    assert np.all(np.abs(np.corrcoef(places[:5])[np.triu_indices(5, 1)]) < 0.6)
    assert np.all(np.abs(places.mean(axis=0) - 19.5) < 4)
    assert not np.array_equal(places[0], places[100])


@pytest.mark.parametrize("lengths", [(1024, 2048), (2048,), (1100,), (512, 1024, 2048)])
def test_packs_are_full_and_steps_mix_kernels(lengths: tuple[int, ...]) -> None:
    tokens = realistic(400)
    config = PackingConfig(lengths=lengths)
    plan = plan_of(tokens, config)
    check_packs(plan.packs, tokens, all_rows(tokens))
    used = plan.packs.tokens(tokens.prefix_lengths, tokens.suffix_lengths)
    assert used.sum() >= 0.95 * plan.packs.length.sum()
    kernels = [len(set(plan.step(index).kernel.tolist())) for index in range(len(plan))]
    assert min(kernels) >= MIN_KERNELS
    if lengths[-1] >= 2048:  # every group fits whole
        # Few prefixes are repeated to fill up: what is no repetition is still 95 % of the capacity.
        num_groups = np.ceil(np.bincount(tokens.group) / config.configs_per_kernel)
        needed = num_groups @ tokens.prefix_lengths + tokens.suffix_lengths.sum()
        assert needed >= 0.95 * plan.packs.length.sum()


def test_steps_are_dealt_evenly() -> None:
    plan = plan_of(realistic(120), PackingConfig())
    for length in (1024, 2048):
        sizes = {
            len(plan.step(index))
            for index in range(len(plan))
            if plan.step(index).length[0] == length
        }
        assert max(sizes) - min(sizes) <= 1


def test_a_step_has_a_kernel_once_where_there_are_enough() -> None:
    plan = plan_of(realistic(600), PackingConfig())
    twice = 0
    for index in range(len(plan)):
        kernels = plan.step(index).kernel.tolist()
        twice += len(kernels) - len(set(kernels))
    assert twice < 0.04 * len(plan.packs.kernel)


def test_planning_takes_no_square_of_the_launches() -> None:
    tokens = realistic(800)
    start_s = time.process_time()
    plan_of(tokens, PackingConfig())
    assert time.process_time() - start_s < 2


def test_a_launch_longer_than_the_longest_pack_is_refused() -> None:
    tokens = make_tokens([5, 60], [3, 4, 5], [0, 1, 1])
    with pytest.raises(
        BadInput, match=r"launch 2 has 65 tokens \(60 of them its kernel's\).*64.*lengths"
    ):
        launches_of(tokens, all_rows(tokens), 64)
    assert len(launches_of(tokens, np.array([0, 1]), 64)) == 2
    with pytest.raises(BadInput, match="65 tokens"):
        packs_for(tokens, all_rows(tokens), SMALL)


@FEW
@given(tokens=small_tokens(), data=st.data())
def test_packs_for_has_each_row_once(tokens: Tokens, data: st.DataObject) -> None:
    rows = np.flatnonzero(
        data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    )
    packs = packs_for(tokens, rows, SMALL)
    check_packs(packs, tokens, rows)
    assert same_packs(packs, packs_for(tokens, rows[::-1], SMALL))
    used = packs.tokens(tokens.prefix_lengths, tokens.suffix_lengths)
    assert np.all((packs.length == 32) == (used <= 32))


def test_a_sweep_takes_as_few_packs_as_hold_it() -> None:
    tokens = make_tokens([300, 40], [25] * 985 + [10] * 3, [0] * 985 + [1] * 3)
    packs = packs_for(tokens, all_rows(tokens), PackingConfig())
    assert len(packs) == -(-985 // ((2048 - 300) // 25))
    assert packs.length.tolist() == [2048] * 14 + [1024]
    mixed = realistic(50)
    packs = packs_for(mixed, all_rows(mixed), PackingConfig())
    suffixes = np.bincount(mixed.group, weights=mixed.suffix_lengths)
    pieces = np.ceil(suffixes / (2048 - mixed.prefix_lengths))  # that each kernel needs at least
    least = pieces @ mixed.prefix_lengths + suffixes.sum()
    assert len(packs) <= 1.02 * least / 2048 + 1


@FEW
@given(tokens=small_tokens())
def test_validation_packs_have_each_launch_once_and_training_shapes(tokens: Tokens) -> None:
    rows = all_rows(tokens)
    launches = launches_of(tokens, rows, 64)
    shapes = pack_shapes(launches, SMALL)
    for packs in (validation_packs(launches, SMALL), plan_of(tokens).packs):
        check_packs(packs, tokens, rows)
        for length, most in zip(packs.length.tolist(), packs.num_launches.tolist(), strict=True):
            assert most <= shapes[length].launches


def multiset(packs: Packs) -> list[tuple[int, str]]:
    pairs = zip(packs.length.tolist(), launches_by_pack(packs), strict=True)
    return sorted((length, repr(parts)) for length, parts in pairs if parts)


@FEW
@given(
    tokens=small_tokens(),
    world_size=st.integers(1, 5),
    per_pass=st.integers(1, 4),
)
def test_ranks_share_the_packs_of_a_step(tokens: Tokens, world_size: int, per_pass: int) -> None:
    packs = plan_of(tokens).packs  # of several lengths: more than a step has
    widths = {32: per_pass, 64: 2}
    passes = [
        rank_passes(packs, rank=rank, world_size=world_size, per_pass=widths)
        for rank in range(world_size)
    ]
    shapes = [[(len(one), *set(one.length.tolist())) for one in mine] for mine in passes]
    assert all(shape == shapes[0] for shape in shapes)
    assert all(width == widths[length] for width, length in shapes[0])
    assert multiset(joined([one for mine in passes for one in mine])) == multiset(packs)


@given(num=st.integers(1, 300), most=st.integers(1, 40), world_size=st.integers(1, 9))
def test_passes_are_few_and_hold_all(num: int, most: int, world_size: int) -> None:
    width = packs_per_pass(num, most, world_size)
    assert 1 <= width <= most
    num_passes = -(-num // (world_size * width))
    assert num_passes == -(-num // (world_size * most))
    assert (width - 1) * world_size * num_passes < num


def test_resume_in_mid_epoch_at_another_world_size_reads_the_same_packs() -> None:
    tokens = realistic(60)
    rows = all_rows(tokens)
    config = PackingConfig(tokens_per_pass=4096)
    halves = {"train": rows[rows % 9 > 0], "validation": rows[rows % 9 == 0]}
    before = pack_schedule(tokens, **halves, config=config, seed=3)
    epochs = [before.locate(step) for step in range(40)]
    assert epochs[-1][0] >= 2
    assert epochs == sorted(epochs)
    assert len({before.locate(step) for step in range(40)}) == 40
    shapes = set()
    for world_size in (1, 2, 3, 5):
        after = pack_schedule(tokens, **halves, config=config, seed=3)
        for step in (17, 18, 25, 2, 39):  # any order: nothing is replayed
            passes = [
                after.passes(step, rank=rank, world_size=world_size) for rank in range(world_size)
            ]
            assert len({len(mine) for mine in passes}) == 1
            together = joined([one for mine in passes for one in mine])
            assert multiset(together) == multiset(before.step_packs(step))
            if world_size == 1:
                shapes |= {batch.ids.shape for batch in after.batches(step)}
        passes = [
            after.validation_passes(rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        assert len({len(mine) for mine in passes}) == 1
        together = joined([one for mine in passes for one in mine])
        assert sorted(together.launch.tolist()) == halves["validation"].tolist()
        if world_size == 1:
            shapes |= {after.batch(one).ids.shape for one in passes[0]}
    assert {length for _, length in shapes} == {1024, 2048}
    assert len(shapes) == 2


def test_an_epoch_is_each_train_launch_once_over_its_steps() -> None:
    tokens = realistic(40)
    train, validation = np.arange(0, len(tokens), 2), np.arange(1, len(tokens), 2)
    schedule = pack_schedule(
        tokens, train=train, validation=validation, config=PackingConfig(), seed=0
    )
    seen: dict[int, list[int]] = {}
    step = 0
    while schedule.locate(step)[0] < 3:
        epoch, _ = schedule.locate(step)
        seen.setdefault(epoch, []).extend(schedule.step_packs(step).launch.tolist())
        step += 1
    assert [sorted(rows) for rows in seen.values()] == [train.tolist()] * 3


def test_nothing_to_train_on_is_refused_and_nothing_to_validate_is_not() -> None:
    tokens = realistic(3)
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(BadInput, match="no launch"):
        pack_schedule(tokens, train=none, validation=none, config=PackingConfig(), seed=0)
    schedule = pack_schedule(
        tokens, train=all_rows(tokens), validation=none, config=PackingConfig(), seed=0
    )
    assert schedule.validation_passes() == ()


def test_a_small_dataset_is_not_padded_to_a_whole_step() -> None:
    tokens = realistic(4)
    config = PackingConfig(tokens_per_step=2**20, tokens_per_pass=2**20)
    schedule = pack_schedule(
        tokens,
        train=all_rows(tokens),
        validation=np.zeros(0, dtype=np.int64),
        config=config,
        seed=0,
    )
    needed = tokens.prefix_lengths.sum() * 5 + tokens.suffix_lengths.sum()
    for one in schedule.passes(0):
        assert one.length.sum() < needed + 3 * one.length[0]


def test_packs_select_and_join() -> None:
    packs = plan_of(realistic(20), PackingConfig()).packs
    index = np.array([3, 0, 3])
    assert launches_by_pack(packs.take(index)) == [launches_by_pack(packs)[at] for at in index]
    both = joined([packs, empty_packs(64, 2), packs.take(index)])
    assert launches_by_pack(both) == [
        *launches_by_pack(packs), [], [], *launches_by_pack(packs.take(index))
    ]  # fmt: skip
    assert both.length[len(packs) : len(packs) + 2].tolist() == [64, 64]


def test_config_refuses_steps_and_passes_shorter_than_a_pack() -> None:
    for key in ("tokens_per_step", "tokens_per_pass"):
        with pytest.raises(ValueError, match=f"packing.{key}"):
            PackingConfig(**{key: 1024})

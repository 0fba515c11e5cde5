"""Splits: pure, complete, and no family crosses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.statistics.splits import (
    PARTS,
    Part,
    Split,
    SplitError,
    SplitKind,
    assign_parts,
    check_split,
    crossing_families,
    split_by_config,
    split_by_family,
    split_by_kernel,
    unit_hash,
)


def families(number: int) -> dict[str, set[str]]:
    return {f"f{index:04d}": {"own"} for index in range(number)}


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 400), st.integers(0, 1000))
def test_every_family_is_in_exactly_one_part_and_no_part_is_empty(number, seed):
    split = split_by_family(families(number), seed=seed)
    listed = [identity for part in PARTS for identity in split.parts[part]]
    assert sorted(listed) == sorted(families(number))
    assert all(split.parts[part] for part in PARTS)


def test_shares_are_80_8_4_8():
    split = split_by_family(families(1000), seed=0)
    assert [len(split.parts[part]) for part in PARTS] == [800, 80, 40, 80]


def test_depends_on_ids_and_seed_only():
    shuffled = dict(reversed(families(50).items()))
    assert split_by_family(families(50), seed=1) == split_by_family(shuffled, seed=1)
    assert split_by_family(families(50), seed=1) != split_by_family(families(50), seed=2)


def test_a_growing_corpus_moves_few_families():
    before = split_by_family(families(500), seed=0)
    after = split_by_family(families(520), seed=0)
    owner = {identity: part for part, ids in after.parts.items() for identity in ids}
    moved = sum(owner[identity] != part for part, ids in before.parts.items() for identity in ids)
    assert moved < 30


def test_families_that_touch_a_public_suite_are_test():
    content = families(40) | {"a": {"own", "Rodinia/bfs"}, "b": {"shoc"}, "c": {"rodinia_like"}}
    split = split_by_family(content, seed=0)
    assert {"a", "b"} <= set(split.parts[Part.TEST])
    free_test = set(split.parts[Part.TEST]) - {"a", "b"}
    assert len(free_test) == round(0.08 * 41)


def test_three_families_are_enough_where_a_suite_fills_test():
    split = split_by_family(families(3) | {"s": {"shoc"}}, seed=0)
    assert split.parts[Part.TEST] == ("s",)
    assert all(len(split.parts[part]) == 1 for part in PARTS)
    with pytest.raises(SplitError, match=r"at least 4 families, found 3.*split\.kind=config"):
        split_by_family(families(3), seed=0)


def rows(number_kernels: int, configs: int, kernels_per_family: int = 2):
    kernel_ids = np.repeat([f"k{i:03d}" for i in range(number_kernels)], configs)
    family_ids = np.repeat(
        [f"k{i - i % kernels_per_family:03d}" for i in range(number_kernels)], configs
    )
    sample_ids = [f"s{i}" for i in range(len(kernel_ids))]
    return {
        "family_ids": family_ids.tolist(),
        "kernel_ids": kernel_ids.tolist(),
        "sample_ids": sample_ids,
    }


def test_no_family_crosses_and_seen_configs_are_of_train():
    columns = rows(60, 50)
    split = split_by_family({name: {"own"} for name in columns["family_ids"]}, seed=0)
    parts = assign_parts(split, **columns)
    owner = {}
    for family, part in zip(columns["family_ids"], parts.tolist(), strict=True):
        owner.setdefault(family, set()).add(part)
    assert all(len(found) == 1 or found == {"train", "seen_configs"} for found in owner.values())
    held_out = np.sum(parts == "seen_configs") / np.sum(np.isin(parts, ["train", "seen_configs"]))
    assert 0.17 < held_out < 0.23


def test_assignment_does_not_depend_on_row_order():
    columns = rows(20, 10)
    split = split_by_family({name: {"own"} for name in columns["family_ids"]}, seed=0)
    parts = assign_parts(split, **columns)
    order = np.random.default_rng(0).permutation(len(parts))
    shuffled = {name: [values[i] for i in order] for name, values in columns.items()}
    assert np.array_equal(assign_parts(split, **shuffled), parts[order])


def test_unknown_families_are_in_no_part():
    split = split_by_family(families(10), seed=0)
    parts = assign_parts(split, family_ids=["new"], kernel_ids=["new"], sample_ids=["s"])
    assert parts.tolist() == [""]


def test_by_kernel_holds_out_a_tenth_and_counts_crossing_families():
    columns = rows(200, 3)
    split = split_by_kernel(columns["kernel_ids"], seed=0)
    assert len(split.parts[Part.TEST]) == 20
    owner = dict(zip(columns["kernel_ids"], columns["family_ids"], strict=True))
    check_split(split, owner)
    assert 10 < len(crossing_families(split, owner)) < 80
    by_family = split_by_family({name: {"own"} for name in columns["family_ids"]}, seed=0)
    assert crossing_families(by_family, owner) == []


def test_by_config_splits_rows_of_every_kernel():
    columns = rows(20, 100)
    parts = assign_parts(split_by_config(seed=0), **columns)
    share = {name: np.mean(parts == name) for name in np.unique(parts)}
    assert set(share) == {"train", "validation", "calibration", "test"}
    assert share["test"] == pytest.approx(0.20, abs=0.03)
    assert share["train"] == pytest.approx(0.68, abs=0.03)


@pytest.mark.parametrize(
    "split",
    [
        split_by_family(families(12) | {"s": {"shoc"}}, seed=5, held_out_share=0.3),
        split_by_kernel([f"k{i}" for i in range(9)], seed=6),
        split_by_config(seed=7),
    ],
)
def test_record_reads_back_to_the_same_rule(split):
    read = Split.from_json(json.loads(json.dumps(split.to_json())))
    columns = rows(12, 20)
    assert (read.kind, read.seed, read.held_out_share) == (
        split.kind,
        split.seed,
        split.held_out_share,
    )
    assert np.array_equal(assign_parts(read, **columns), assign_parts(split, **columns))


@pytest.mark.parametrize(
    "content",
    [{}, {"schema": 1}, {"schema": 1, "parts": {}, "held_out": {}, "kind": "by-moon", "seed": 0}],
)
def test_damaged_records_are_refused(content):
    with pytest.raises(SplitError, match=r"split\.json"):
        Split.from_json(content)


def test_check_refuses_an_id_in_two_parts():
    split = Split(kind=SplitKind.FAMILY, seed=0, parts={Part.TRAIN: ("a",), Part.TEST: ("a",)})
    with pytest.raises(SplitError, match="is in both"):
        check_split(split, {"a": "a"})


def test_check_refuses_families_that_were_merged_across_parts():
    split = Split(kind=SplitKind.FAMILY, seed=0, parts={Part.TRAIN: ("a",), Part.TEST: ("b",)})
    check_split(split, {"a": "a", "b": "b", "c": "b"})
    with pytest.raises(SplitError, match="create a new split"):
        check_split(split, {"a": "a", "b": "a"})


def test_unit_hash_is_uniform_and_frozen():
    draws = np.array([unit_hash(0, "config", str(index)) for index in range(4000)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert draws.min() >= 0
    assert draws.max() < 1
    # A changed hash would move rows between parts of published splits.
    assert unit_hash(0, "config", "a") == 0.6951718316753975

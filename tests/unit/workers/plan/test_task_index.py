"""From task ids to places in the plan, and the search for what is left, at eight bytes a task."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.ids import task_id, task_id_heads
from tests.support.factories.dataset_factory import make_device_class, make_kernel
from workers.config import PlanConfig, TimingConfig
from workers.plan.plan import Plan
from workers.plan.task_index import TaskIndex, class_heads, first_pending

KERNELS = tuple(sorted((make_kernel(i) for i in range(40)), key=lambda one: one.kernel_id))


def make(num_kernels: int, num_classes: int) -> Plan:
    return Plan(
        kernels=KERNELS[:num_kernels],
        corpus_sha256="c",
        device_classes=tuple(make_device_class(f"class{i}") for i in range(num_classes)),
        plan_config=PlanConfig(),
        timing_config=TimingConfig(),
    )


@settings(max_examples=40, deadline=None)
@given(num_kernels=st.integers(1, 40), num_classes=st.integers(1, 5))
def test_every_task_is_found_by_its_id(num_kernels: int, num_classes: int) -> None:
    plan = make(num_kernels, num_classes)
    index = TaskIndex(plan)
    ids = [plan.task(i).task_id for i in range(plan.num_tasks)]
    assert [index.index_of(one) for one in ids] == list(range(plan.num_tasks))
    heads = [int(head) for found in class_heads(plan) for head in found]
    assert heads == [int(one[:16], 16) for one in ids]


def test_ids_of_no_task_are_refused():
    plan, index = make(7, 2), TaskIndex(make(7, 2))
    known = plan.task(3).task_id
    same_beginning = known[:-1] + ("0" if known[-1] != "0" else "1")
    elsewhere = replace(plan, corpus_sha256="another").task(3).task_id
    for wrong in (
        "nothing",
        "",
        "0" * 20,
        "f" * 20,
        same_beginning,
        known.upper() + "0",
        elsewhere,
    ):
        with pytest.raises(KeyError):
            index.index_of(wrong)


def test_ids_that_begin_alike_are_told_apart(monkeypatch):
    """As if all hashes began with the same bits: the whole id decides."""
    plan = make(9, 2)
    ids = [plan.task(i).task_id for i in range(plan.num_tasks)]
    index = TaskIndex(plan)
    same = int(ids[5][:16], 16)
    monkeypatch.setattr(
        "workers.plan.task_index.class_heads",
        lambda plan: iter([np.full(len(plan.kernels), same, np.uint64)] * len(plan.device_classes)),
    )
    assert index.index_of(ids[5]) == 5


@given(texts=st.lists(st.text(max_size=8), max_size=5), device_class=st.text(max_size=5))
def test_heads_are_those_of_the_ids(texts: list[str], device_class: str) -> None:
    raw = task_id_heads(plan_hash="p", kernel_ids=texts, device_class=device_class)
    whole = [task_id(plan_hash="p", kernel_id=one, device_class=device_class) for one in texts]
    assert raw.hex() == "".join(one[:16] for one in whole)


@settings(max_examples=60, deadline=None)
@given(
    num_kernels=st.integers(1, 40),
    num_classes=st.integers(1, 4),
    limit=st.integers(0, 50),
    data=st.data(),
)
def test_the_first_tasks_without_result(
    num_kernels: int, num_classes: int, limit: int, data: st.DataObject
) -> None:
    plan = make(num_kernels, num_classes)
    done = data.draw(st.sets(st.integers(0, plan.num_tasks - 1)))
    keys = np.unique(np.array([int(plan.task(i).task_id[:16], 16) for i in done], dtype=np.uint64))
    found = first_pending(plan, keys, limit=limit)
    assert [one.index for one in found] == [i for i in range(plan.num_tasks) if i not in done][
        :limit
    ]

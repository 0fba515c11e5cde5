"""Ranks, threads and what every node must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config import load_train_config
from trainer.errors import BadInput
from trainer.launch.job import TrainJob
from trainer.launch.rank_assignment import Node, assign_ranks, check_sight, threads_of

NODES = [
    Node(node_id=node_id, host=f"host-{node_id}", address=f"10.0.0.{index}")
    for index, node_id in enumerate(["a", "a", "b"], start=1)
]


def test_ranks_meet_at_the_first_one() -> None:
    assignments = assign_ranks(NODES, port=4711, sees_one_gpu=False)
    assert [assignment.rank for assignment in assignments] == [0, 1, 2]
    assert {
        (assignment.world_size, assignment.address, assignment.port) for assignment in assignments
    } == {(3, "10.0.0.1", 4711)}
    assert [assignment.local_rank for assignment in assignments] == [0, 1, 0]
    assert [assignment.own_address for assignment in assignments] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    ]


def test_a_process_that_sees_one_gpu_uses_number_0() -> None:
    assert [one.local_rank for one in assign_ranks(NODES, port=1, sees_one_gpu=True)] == [0, 0, 0]


def test_a_gpu_process_leaves_threads_for_the_other_gpus() -> None:
    resources = {"a": {"CPU": 64.0, "GPU": 8.0}, "b": {"CPU": 8.0}}
    assert threads_of(["a", "a", "b"], resources, "GPU") == [8, 8, 8]
    assert threads_of(["a", "a", "b", "c"], resources, "CPU") == [32, 32, 8, 1]


def test_the_node_that_does_not_see_a_folder_is_named() -> None:
    check_sight(NODES, [[], [], []])
    with pytest.raises(BadInput, match=r"/data \(on host-b\): put it on a file system"):
        check_sight(NODES, [[], [], [Path("/data")]])


def test_a_job_gets_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_train_config("tiny")
    job = TrainJob(data="data", out=Path("run"), config=config, init="weights").absolute()
    assert (job.data, job.out) == (str(tmp_path / "data"), tmp_path / "run")
    assert job.init == str(tmp_path / "weights")
    assert job.inputs() == [tmp_path / "data", tmp_path / "weights"]
    far = TrainJob(data="s3://bucket/data", out=Path("run"), config=config, init="random")
    assert (far.absolute().data, far.absolute().init) == ("s3://bucket/data", "random")
    assert far.inputs() == []

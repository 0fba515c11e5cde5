"""What an actor logs is in its event log, also when it fails before it collects."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.config import ClusterCollectConfig
from cluster.pool.reports import ActorSpec, ActorState, FailureKind
from cluster.pool.slots import ActorSlot
from cluster.ray.actor import CollectActor
from llmperf_common.installation import loaded_installation
from tests.support.collecting import replay_file, wait_until
from workers.corpus.read import Corpus


def started(folder: Path, files_sha256: str) -> tuple[CollectActor, ActorSlot]:
    """Start an actor of a driver with these files."""
    slot = ActorSlot(
        node_id="n1", host="h", index=0, num_on_node=1, on_gpu=False, device=replay_file(folder / "r.json")
    )  # fmt: skip
    spec = ActorSpec(
        slot=slot,
        location=str(folder / "data"),
        ledger="sqlite",
        state_folder=folder / "state",
        config=ClusterCollectConfig(),
        files_sha256=files_sha256,
    )
    return CollectActor(spec, [], {"actor_id": "a1", "node_id": "n1", "seat": slot.name}), slot


def test_a_folder_that_is_not_the_drivers_is_told_in_the_event_log(tmp_path: Path) -> None:
    (tmp_path / "data" / "events").mkdir(parents=True)
    actor, slot = started(tmp_path, loaded_installation().sha256)
    wait_until(lambda: actor.report().state is ActorState.OPEN)
    actor.begin(Corpus(kernels=(), sha256="0" * 64, skipped=()), "another run")
    wait_until(lambda: actor.report().is_final)
    report = actor.report()
    assert (report.state, report.kind) == (ActorState.FAILED, FailureKind.FOREIGN)
    (path,) = (tmp_path / "data" / "events").glob("*.jsonl")
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert (line["event"], line["level"], line["actor_id"], line["seat"]) == (
        "log", "error", "a1", slot.name,
    )  # fmt: skip
    assert "is not the folder that the driver sees" in line["message"]
    assert line["worker_id"] == report.worker_id


def test_an_actor_with_other_files_than_the_drivers_fails(tmp_path: Path) -> None:
    """After an upgrade a new actor would measure with the new version."""
    actor, _ = started(tmp_path, "0" * 64)
    wait_until(lambda: actor.report().is_final)
    report = actor.report()
    assert (report.state, report.kind) == (ActorState.FAILED, FailureKind.CHANGED)
    assert "are not those of the process that started the run" in report.detail

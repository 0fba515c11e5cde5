"""A fit that was killed, interrupted or started with other processes goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.factories.fit_world import (
    Case,
    SmallModel,
    last_state,
    launch,
    log_of,
    run,
    run_well,
)
from tests.support.sampling import at_night_unless, every
from trainer.fit.checkpoint import load_weights

EXACT, NEAR = 0.0, 1e-5


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Return the folder of a case fitted without a stop; each is fitted once."""
    done: dict[tuple[Case, int], Path] = {}

    def of(case: Case, world_size: int = 1) -> Path:
        key = (case, world_size)
        if key not in done:
            done[key] = tmp_path_factory.mktemp("straight")
            run_well(case, done[key], world_size)
        return done[key]

    return of


def _assert_equal(one: Path, other: Path, tolerance: float, step: int = 40) -> None:
    """Weights, moments and logged losses are the same."""
    left, right = last_state(one, step), last_state(other, step)
    assert left.keys() == right.keys()
    assert any(key.endswith("exp_avg_sq") and value.any() for key, value in left.items())
    for key, value in left.items():
        if tolerance:
            assert torch.allclose(value, right[key], rtol=tolerance, atol=tolerance), key
        else:
            assert torch.equal(value, right[key]), key
    for first, second in zip(log_of(one), log_of(other), strict=True):
        for key in ("step", "learning_rate"):
            assert first[key] == second[key]
        for key in ("loss", "gradient_norm"):
            assert second[key] == pytest.approx(first[key], rel=tolerance, abs=tolerance)
        assert (first["validation_loss"] is None) == (second["validation_loss"] is None)
        if first["validation_loss"] is not None:
            assert second["validation_loss"] == pytest.approx(
                first["validation_loss"], rel=tolerance, abs=tolerance
            )


def _killed_after(case: Case, folder: Path, step: int, world_size: int = 1) -> None:
    """Fit until every process is gone: the chosen one by SIGKILL, the others because it is."""
    codes = [code for code, _ in run(replace(case, dies_after_step=step), folder, world_size)]
    assert codes[0] == -9
    assert all(code == 3 for code in codes[1:])


def _twice_killed(case: Case, folder: Path, worlds: tuple[int, int, int]) -> None:
    """20 steps, SIGKILL, 10 steps, SIGKILL, and the rest, each with its number of processes."""
    case = replace(case, checkpoint_every=10)
    _killed_after(case, folder, 25, worlds[0])
    assert log_of(folder)[-1]["step"] >= 20
    _killed_after(case, folder, 36, worlds[1])
    run_well(case, folder, worlds[2])
    assert "resumed_from=30" in (folder / "said-0").read_text()


def test_resume_after_two_sigkills_is_bitwise_what_40_steps_straight_give(straight, tmp_path):
    _twice_killed(Case(), tmp_path, (1, 1, 1))
    _assert_equal(straight(Case()), tmp_path, EXACT)


@pytest.mark.parametrize(
    ("precision", "stage"),
    every(2, [(one, stage) for one in ("fp32", "bf16") for stage in (1, 2, 3)]),
)
def test_resume_is_bitwise_at_each_stage(straight, tmp_path, stage, precision):
    case = Case(stage=stage, precision=precision, validated_every=15)
    _twice_killed(case, tmp_path, (1, 1, 1))
    _assert_equal(straight(case), tmp_path, EXACT)


WORLDS = ("221", "112", "212")


@pytest.mark.parametrize(
    ("worlds", "stage"), every(4, [(worlds, stage) for worlds in WORLDS for stage in (1, 2, 3)])
)
def test_resume_at_another_world_size(straight, tmp_path, stage, worlds):
    case = Case(stage=stage, validated_every=15)
    first, second, third = map(int, worlds)
    _twice_killed(case, tmp_path, (first, second, third))
    _assert_equal(straight(case), tmp_path, NEAR)


@pytest.mark.slow
def test_resume_at_another_stage(straight, tmp_path):
    case = Case(checkpoint_every=20)
    _killed_after(replace(case, stage=3), tmp_path, 25, 2)
    run_well(replace(case, stage=1), tmp_path)
    assert "resumed_from=20" in (tmp_path / "said-0").read_text()
    _assert_equal(straight(Case()), tmp_path, NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_world_size_2_gives_what_1_gives(straight, stage):
    case = Case(stage=stage, validated_every=15)
    _assert_equal(straight(case), straight(case, 2), NEAR)


@pytest.mark.slow
def test_world_size_and_passes_do_not_change_the_gradient(straight):
    # Seven packs of uneven weight: in one pass, in four, on two ranks in one and in four.
    one_step = Case(max_steps=1, packs_per_step=7, clip_norm=0, packs_per_pass=7)
    gradients = {}
    for world_size, packs_per_pass in ((1, 7), (1, 2), (2, 4), (2, 1)):
        case = replace(one_step, packs_per_pass=packs_per_pass)
        state = last_state(straight(case, world_size), 1)
        gradients[world_size, packs_per_pass] = {
            key: value * 10 for key, value in state.items() if key.endswith("exp_avg")
        }  # the first moment is a tenth of the first gradient
    first = gradients.pop((1, 7))
    for other in gradients.values():
        for key, value in first.items():
            assert (value - other[key]).abs().max() <= 1e-6 * value.abs().max().clamp(min=1), key


POINTS = (
    "begun", "weights-00000.safetensors", "moments-00000.safetensors", "weights-00001.safetensors",
    "moments-00001.safetensors", "weights-00002.safetensors", "moments-00002.safetensors",
    "state.json", "manifest.json", "synced", "renamed", "published", "hidden", "removed",
)  # fmt: skip


@pytest.mark.parametrize(
    "point", at_night_unless(lambda point: not point.endswith("1.safetensors"), POINTS)
)
def test_resume_after_a_kill_at_a_step_of_writing_a_checkpoint(straight, tmp_path, point):
    # The third checkpoint, of step 30, is half written; the first is removed after it.
    case = Case(checkpoint_every=10)
    codes = [code for code, _ in run(replace(case, dies_at=f"3:{point}"), tmp_path)]
    assert codes == [-9]
    run_well(case, tmp_path)
    is_there = POINTS.index(point) >= POINTS.index("renamed")
    expected = 30 if is_there else 20
    assert f"resumed_from={expected}" in (tmp_path / "said-0").read_text()
    _assert_equal(straight(Case()), tmp_path, EXACT)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        "step-00000030",
        "step-00000040",
    }


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_resume_after_one_of_two_ranks_was_killed_while_it_wrote(straight, tmp_path, rank):
    case = Case(checkpoint_every=20, chosen_rank=rank, stage=2)
    point = f"{2 if rank == 0 else 0}:weights-0000{rank}.safetensors"
    codes = [code for code, _ in run(replace(case, dies_at=point), tmp_path, 2)]
    assert codes[rank] == -9
    assert codes[1 - rank] == 3
    run_well(case, tmp_path, 2)
    _assert_equal(straight(Case(stage=2)), tmp_path, NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["shorter", "other bytes", "no manifest"])
def test_resume_from_the_one_before_a_damaged_checkpoint(straight, tmp_path, damage):
    case = Case(checkpoint_every=10)
    _killed_after(case, tmp_path, 25)
    newest = tmp_path / "checkpoints" / "step-00000020"
    victim = newest / "moments-00000.safetensors"
    if damage == "no manifest":
        (newest / "manifest.json").unlink()
    elif damage == "shorter":
        os.truncate(victim, victim.stat().st_size - 1)
    else:
        content = bytearray(victim.read_bytes())
        content[-1] ^= 1
        victim.write_bytes(content)
    run_well(case, tmp_path)
    said = (tmp_path / "said-0").read_text()
    assert "resumed_from=10" in said
    assert "checkpoint step-00000020 is not whole" in said
    _assert_equal(straight(Case()), tmp_path, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_after_sigterm_at_one_rank(straight, tmp_path, world_size):
    case = Case(checkpoint_every=1000, chosen_rank=world_size - 1)
    ended = run(replace(case, is_asked_at_step=18), tmp_path, world_size)
    assert [code for code, _ in ended] == [130] * world_size
    assert "interrupted after step 1" in ended[0][1]
    assert not any(said for _, said in ended[1:]), "the first process speaks for all"
    run_well(case, tmp_path, world_size)
    _assert_equal(straight(Case()), tmp_path, NEAR if world_size > 1 else EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_after_a_full_disk(straight, tmp_path, world_size):
    # The last rank's disk is full; every rank says so, and the checkpoint before it stays.
    case = Case(checkpoint_every=10, chosen_rank=world_size - 1)
    point = f"{2 if world_size == 1 else 0}:weights-0000{world_size - 1}.safetensors"
    ended = run(replace(case, fills_disk_at=point), tmp_path, world_size)
    assert [code for code, _ in ended] == [3] * world_size
    assert all("the disk is full" in said for _, said in ended)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == ({"step-00000010"} if world_size == 1 else set())
    run_well(case, tmp_path, world_size)
    _assert_equal(straight(Case()), tmp_path, NEAR if world_size > 1 else EXACT)


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_fit_and_keeps_the_checkpoint(tmp_path):
    case = Case(checkpoint_every=10, poisoned_step=15)
    for code, said in run(case, tmp_path, 2):
        assert code == 3
        assert "the loss of step 15 is inf (learning rate 0.0" in said
        assert "optimiser.learning_rate" in said
        assert "Traceback" not in said
    run_well(replace(case, poisoned_step=0, max_steps=12), tmp_path)
    assert "resumed_from=10" in (tmp_path / "said-0").read_text()


@pytest.mark.slow
def test_another_run_in_the_folder_is_refused(tmp_path):
    case = Case(max_steps=3)
    run_well(case, tmp_path, 1)
    (code, said), (other_code, _) = run(replace(case, identity="b"), tmp_path, 2)
    assert (code, other_code) == (2, 2)
    assert "another run" in said


@pytest.mark.slow
def test_the_best_checkpoint_stays_and_patience_ends_the_fit(tmp_path):
    # The learning rate is far too high: after the first looks it only gets worse.
    case = Case(learning_rate=0.9, validated_every=4, patience=3, checkpoint_every=4, max_steps=200)
    run_well(case, tmp_path)
    said = (tmp_path / "said-0").read_text()
    assert "Ending.PATIENCE" in said
    looks = {
        line["step"]: line["validation_loss"]
        for line in log_of(tmp_path)
        if line["validation_loss"]
    }
    best = min(looks, key=lambda step: looks[step])
    assert f"best_step={best}" in said
    assert max(looks) == best + 12 < 200
    there = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert there == [f"step-{step:08d}" for step in (best, best + 8, best + 12)]
    load_weights(tmp_path / "checkpoints" / there[0], SmallModel())
    before = json.dumps(log_of(tmp_path))
    run_well(case, tmp_path)  # it is over: nothing is fitted, nothing written
    assert json.dumps(log_of(tmp_path)) == before


@pytest.mark.slow
def test_torchrun_starts_a_fit(straight, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         "-m", "tests.support.factories.fit_world", str(tmp_path)],
        check=True, timeout=110, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    _assert_equal(straight(Case()), tmp_path, NEAR)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_with_a_message(tmp_path):
    started = launch(Case(dies_after_step=12, chosen_rank=1), tmp_path, 2)
    (code, said), (killed, _) = [one.end() for one in started]
    assert (code, killed) == (3, -9)
    assert "another process of this fit has ended" in said
    assert "Traceback" not in said

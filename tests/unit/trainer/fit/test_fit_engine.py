"""The engine alone in this process: its gradient, its updates, its state, its silence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.support.factories.fit_world import (
    Case,
    SmallModel,
    SmallOutput,
    SmallSource,
    fit_here,
    plan_of,
)
from trainer.errors import BadInput, FitFailed
from trainer.fit.checkpoint import load_weights
from trainer.fit.checkpoint_folder import read_whole
from trainer.fit.engine import Engine, deepspeed_config
from trainer.fit.loop import fit
from trainer.fit.loss import losses
from trainer.fit.ranks import join_ranks
from trainer.fit.step_source import Pass
from trainer.regressor_config import OptimiserConfig


@pytest.fixture(scope="module")
def ranks():
    return join_ranks("cpu")


def _config(**values):
    return OptimiserConfig(**{"warmup_steps": 0, "clip_norm": 0.0, "weight_decay": 0.1} | values)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_updates_are_those_of_plain_torch(ranks, stage):
    """Three steps of two uneven passes, clipped, against torch's own AdamW in float64."""
    source = SmallSource(packs_per_step=6, packs_per_pass=3)
    config = _config(zero_stage=stage, clip_norm=0.5, backbone_learning_rate=1e-3)
    plain = SmallModel().double()
    of_backbone = list(plain.backbone.parameters())
    others = [*plain.norm.parameters(), *plain.head.parameters()]
    adam = torch.optim.AdamW(
        [
            {"params": [one], "lr": rate, "weight_decay": 0.1 if one.ndim > 1 else 0.0}
            for members, rate in ((of_backbone, 1e-3 / 3e-4 * 1e-2), (others, 1e-2))
            for one in members
        ],
        betas=(0.9, 0.95),
    )
    linear = nn.functional.linear
    engine = Engine(SmallModel(), optimiser=config, ranks=ranks)
    for step in (1, 2, 3):
        passes = source.passes(step, 0, 1)
        loss = 0.0
        for number, one in enumerate(passes.passes):
            engine.add_gradient(one, total_weight=passes.total_weight, is_last=number == 1)
            output = plain(one.batch.double())
            loss = (
                loss
                + losses(
                    "l1", output.log2_ns, output.spread, one.log2_ns.double(), one.weight.double()
                ).objective
            )
        norm = engine.step(1e-2)
        adam.zero_grad()
        (loss / passes.total_weight).backward()
        wanted = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        adam.step()
        assert norm == pytest.approx(wanted.item(), rel=1e-5)
    for name, parameter in plain.named_parameters():
        state = engine.state(name)
        assert torch.allclose(state.weight.double(), parameter, atol=2e-6), name
        assert torch.allclose(state.exp_avg.double(), adam.state[parameter]["exp_avg"], atol=1e-6)
    assert engine.num_updates == 3
    engine.close()
    assert nn.functional.linear is linear  # of stage 3 while it fits


@pytest.mark.slow  # DeepSpeed collects garbage ten times while it makes stage 1's optimiser
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_keeps_float32_masters_and_buffers(ranks, stage):
    model = SmallModel()
    engine = Engine(model, optimiser=_config(precision="bf16", zero_stage=stage), ranks=ranks)
    passes = SmallSource(packs_per_step=3, packs_per_pass=3).passes(1, 0, 1)
    engine.add_gradient(passes.passes[0], total_weight=passes.total_weight, is_last=True)
    engine.step(1e-4)
    weight = engine.state("backbone.weight").weight
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())
    assert model.mean.item() == pytest.approx(13.2001, abs=1e-6)  # bf16 knows 13.1875 and 13.25
    engine.close()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_the_engine_says_nothing_on_the_terminal(ranks, capfd, precision):
    Engine(SmallModel(), optimiser=_config(precision=precision), ranks=ranks).close()
    assert capfd.readouterr() == ("", "")


class _Cliff(nn.Module):
    """A finite loss whose slope is infinite."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        value = (batch * 0 + self.weight.abs()).sqrt()
        return SmallOutput(log2_ns=13 + value, spread=value * 0 + 1)


class _OneLaunch:
    def passes(self, step, rank, world_size):
        one = Pass(batch=torch.ones(1, 1), log2_ns=torch.ones(1, 1), weight=torch.ones(1, 1))
        return type("Passes", (), {"passes": [one], "total_weight": 1.0})()


def test_a_gradient_that_is_no_number_ends_the_fit(ranks, tmp_path):
    plan = plan_of(Case(), tmp_path)
    plan = type(plan)(
        **{name: getattr(plan, name) for name in plan.__slots__} | {"source": _OneLaunch()}
    )
    with pytest.raises(FitFailed, match=r"the gradient of step 1 is .* optimiser.clip_norm"):
        fit(_Cliff(), plan, ranks, progress=lambda _line: None)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_fit_leaves_whole_checkpoints_and_a_log(ranks, tmp_path):
    result = fit_here(Case(max_steps=12, validated_every=4, checkpoint_every=5), tmp_path, ranks)
    assert (result.steps, result.resumed_from) == (12, 0)
    assert math.isfinite(result.best_loss)
    assert not isinstance(read_whole(tmp_path / "checkpoints", 12), str)
    model = SmallModel()
    before = model.head.weight.clone()
    load_weights(result.best, model)
    assert not torch.equal(model.head.weight, before)


def test_weights_of_another_model_are_refused(ranks, tmp_path):
    result = fit_here(Case(max_steps=1), tmp_path, ranks)
    model = SmallModel()
    model.head = nn.Linear(13, 3)
    with pytest.raises(BadInput, match=r"another model: head.bias has shape \[2\] there and \[3\]"):
        load_weights(result.best, model)


def test_deepspeed_is_told_what_the_config_says():
    config = deepspeed_config(
        _config(zero_stage=2, clip_norm=0.7, precision="bf16"), world_size=4, num_parameters=11
    )
    assert config["zero_optimization"]["stage"] == 2
    assert config["gradient_clipping"] == 0.7
    assert config["bf16"]["enabled"]
    assert config["train_batch_size"] == 4
    assert config["zero_optimization"]["reduce_bucket_size"] == 12

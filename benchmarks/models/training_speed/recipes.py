"""The recipes that are compared, each as a model with its steps, ready for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from benchmarks.models.training_speed.padded import PaddedRegressor, PaddedSource
from trainer.data.token_store import TokenStore
from trainer.fit.step_source import Pass, StepSource
from trainer.fit.store_source import store_source
from trainer.regressor.backbones.codegen import CODEGEN_2B, CODEGEN_350M, codegen_config
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import PackingConfig, RegressorConfig

Name = Literal["packed", "released", "tuned"]
Size = Literal["toy", "small", "350m", "2b"]
SHAPES = {
    "toy": codegen_config(width=64, depth=2, heads=4, rotary_dims=16),
    "small": codegen_config(width=256, depth=4, heads=4, rotary_dims=32),
    "350m": CODEGEN_350M,
    "2b": CODEGEN_2B,
}
"""Model configs by size; ``toy`` is for a trial run on a CPU, ``small`` has the width and depth of
the preset ``small``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to train.

    Attributes:
        name: name of the recipe.
        setting: the recipe's settings, in words.
        zero_stage: DeepSpeed's ZeRO stage.
        model: the model to train.
        source: the steps of the training.
        validation: returns the passes of the validation part.
    """

    name: Name
    setting: str
    zero_stage: Literal[1, 2, 3]
    model: nn.Module
    source: StepSource
    validation: Callable[[], Iterable[Pass]]


def packed(
    store: TokenStore, size: Size, device: torch.device, *, configs: int, tokens: int
) -> Recipe:
    """Return LLMPerf's recipe: packs with shared prefixes, ``configs`` launches per kernel."""
    model = _model(store, size, device)
    longest = 2048
    packing = PackingConfig(
        lengths=(longest,),
        configs_per_kernel=configs,
        tokens_per_pass=max(tokens, longest),
        tokens_per_step=max(tokens, longest),
    )
    source = store_source(store, model.spec, packing, seed=0, device=device)
    validation = source.validation()
    if device.type == "cuda":
        model.compile_blocks()
    return Recipe(
        name="packed",
        setting=f"{configs} configs a kernel, {tokens:,} tokens a pass",
        zero_stage=1,
        model=model,
        source=source,
        validation=lambda: () if validation is None else validation.passes(0, 1),
    )


def padded(
    store: TokenStore,
    size: Size,
    device: torch.device,
    *,
    is_tuned: bool,
    micro_batch: int,
    launches_per_step: int,
    checkpointing: bool = False,
) -> Recipe:
    """Return the released recipe or the tuned one; see ``padded.py``."""
    like = _model(store, size, device)
    source = PaddedSource(
        store=store,
        spec=like.spec,
        device=device,
        micro_batch=micro_batch,
        launches_per_step=max(launches_per_step, micro_batch),
        is_tuned=is_tuned,
    )
    with device:
        model = PaddedRegressor(like, checkpointing=checkpointing)
    again = ", activations computed again" if checkpointing else ""
    return Recipe(
        name="tuned" if is_tuned else "released",
        setting=f"micro-batch {micro_batch} of 2,048 tokens{again}",
        zero_stage=2,
        model=model,
        source=source,
        validation=lambda: source.validation(store.validation_rows),
    )


def _model(store: TokenStore, size: Size, device: torch.device) -> Regressor:
    """Build the model on ``device``; on a CPU its random weights would take half a minute."""
    spec = RegressorSpec(
        config=RegressorConfig(backbone="codegen", features=False, head_width=512),
        vocabulary=SHAPES[size]["vocab_size"],
        num_slots=0,
        feature_names=(),
        context=2048,
        backbone=SHAPES[size],
    )
    with device:
        model = build_regressor(spec, seed=0)
    rows = store.train_rows
    model.head.fit_target(store.targets.log2_ns[rows], store.targets.weight[rows])
    return model

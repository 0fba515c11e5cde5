"""Optimiser steps over all ranks with DeepSpeed, and the optimiser's state by parameter name.

The only module that imports DeepSpeed. Owns its configuration, the scale of the losses, and the
transfer of weights and AdamW moments to and from ZeRO's partitions. ``step_source.py`` owns the
passes of a step (a pass is one forward and backward run of one rank over some of the step's
launches), ``schedule.py`` the learning rate.

The gradient of a step is that of sum(w * l) / sum(w), where w and l are the weights and losses of
the launches of all ranks and passes. DeepSpeed averages gradients over ranks and adds them over
passes, so the loss of each pass is multiplied by the number of ranks and divided by the step's
total weight sum(w).
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from llmperf_common.extras import require
from trainer.fit.loss import LossKind, losses
from trainer.fit.ranks import Ranks
from trainer.fit.step_source import Pass
from trainer.regressor.parameter_groups import parameter_groups
from trainer.regressor_config import OptimiserConfig

_logger = logging.getLogger(__name__)

BACKBONE = "backbone."
"""Prefix of the names of parameters that use ``backbone_learning_rate``."""
_BETA_1 = 0.9
_MOMENTS = ("exp_avg", "exp_avg_sq")
_LARGEST_BUCKET = 50_000_000
"""Maximum number of elements reduced at once: 200 MB in float32. DeepSpeed's default of 500 million
elements is 2 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterState:
    """One trainable parameter with its moments, not partitioned, in float32.

    Attributes:
        weight: the master weight.
        exp_avg: AdamW's first moment, of the shape of ``weight``.
        exp_avg_sq: AdamW's second moment, of the shape of ``weight``.
    """

    weight: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor


def deepspeed_config(
    optimiser: OptimiserConfig, *, world_size: int, num_parameters: int
) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    Its batch sizes have no effect, because ``Engine`` tells DeepSpeed which pass is a step's last.
    """
    bucket = min(num_parameters, _LARGEST_BUCKET)
    bucket += bucket % 2  # DeepSpeed needs an even number
    zero: dict[str, Any] = {
        "stage": optimiser.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "overlap_comm": False,
    }
    if optimiser.zero_stage == 3:
        zero["stage3_prefetch_bucket_size"] = bucket
        zero["stage3_param_persistence_threshold"] = 10_000
    config: dict[str, Any] = {
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": optimiser.clip_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": 2**31,
    }
    if optimiser.precision == "bf16":
        # No overflow check by DeepSpeed: loop.py ends the fit if the gradient's norm is not finite.
        config["bf16"] = {"enabled": True, "check_grad_overflow": False}
    return config


class Engine:
    """A model that DeepSpeed fits. After construction, only the engine may use its parameters.

    Args:
        model: returns an ``Output`` for a batch. With ``optimiser.precision`` bf16, its parameters
            are cast to bf16, but its buffers are not.
        optimiser: loss and optimiser.
        ranks: the process group; all ranks must construct their engines together.
    """

    def __init__(self, model: nn.Module, *, optimiser: OptimiserConfig, ranks: Ranks) -> None:
        # At each step DeepSpeed 0.19 calls collectives by names that torch 2.13 has deprecated.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        self._ranks = ranks
        self._model = model
        self._objective = _Objective(model.to(ranks.device), optimiser.loss)
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._is_stage_3 = optimiser.zero_stage == 3
        self._linear = functional.linear  # stage 3 replaces it for the whole process
        with _chatter_logged():
            deepspeed = _deepspeed(ranks)
            groups = parameter_groups(model, optimiser)
            self._shares = [group["lr"] / optimiser.learning_rate for group in groups]
            adam = torch.optim.AdamW(
                [{"params": one["params"], "weight_decay": one["weight_decay"]} for one in groups],
                lr=optimiser.learning_rate,
                betas=(_BETA_1, optimiser.beta_2),
                fused=ranks.device.type == "cuda",
            )
            config = deepspeed_config(
                optimiser,
                world_size=ranks.world_size,
                num_parameters=sum(one.numel() for one in self._parameters.values()),
            )
            self._deepspeed, *_ = deepspeed.initialize(
                model=self._objective, optimizer=adam, config=config, dist_init_required=False
            )
        self._tensors = deepspeed.utils
        _put_back(model, buffers)
        self._make_moments()

    def add_gradient(self, one: Pass, *, total_weight: float, is_last: bool) -> float:
        """Run one pass forward and backward; return the weighted sum of its losses.

        The backward run adds the pass's gradient to that of the step.

        Args:
            one: inputs, targets and weights of the pass.
            total_weight: sum of the launches' weights in the step, over all ranks and passes.
            is_last: whether this is the last pass of the step on this rank.
        """
        self._deepspeed.set_gradient_accumulation_boundary(is_last)
        objective, of_time = self._deepspeed(one, self._ranks.world_size / total_weight)
        self._deepspeed.backward(objective, scale_wrt_gas=False)
        return float(of_time)

    def step(self, learning_rate: float) -> float:
        """Update the weights; return the gradient's norm before clipping, NaN if not finite."""
        groups = self._deepspeed.optimizer.param_groups
        for group, share in zip(groups, self._shares, strict=True):
            group["lr"] = learning_rate * share
        self._deepspeed.step()
        norm = self._deepspeed.get_global_grad_norm()
        norm = math.nan if norm is None else float(norm)
        return norm if norm >= 0 else math.nan  # DeepSpeed returns -1 for a norm that is not finite

    @torch.no_grad()
    def loss_of(self, one: Pass) -> float:
        """Return the weighted sum of losses of a pass, without a gradient."""
        self._deepspeed.eval()
        try:
            _, of_time = self._deepspeed(one, 1.0)
        finally:
            self._deepspeed.train()
        return float(of_time)

    @property
    def parameters(self) -> Mapping[str, torch.Size]:
        """Names and shapes (not partitioned) of the trainable parameters."""
        return {name: getattr(one, "ds_shape", one.shape) for name, one in self._parameters.items()}

    @property
    def num_updates(self) -> int:
        """AdamW's own count of steps."""
        inner = self._deepspeed.optimizer.optimizer
        counts = {int(inner.state[flat]["step"]) for flat in self._partitions()}
        assert len(counts) == 1, "the partitions were updated together"
        return counts.pop()

    def state(self, name: str) -> ParameterState:
        """Return a parameter's state, gathered from all ranks, which must call this together."""
        parameter = self._parameters[name]
        weight = self._tensors.safe_get_full_fp32_param(parameter)
        moments = {
            key: self._tensors.safe_get_full_optimizer_state(parameter, key) for key in _MOMENTS
        }
        shape = self.parameters[name]
        return ParameterState(
            weight=weight.reshape(shape),
            **{key: moment.reshape(shape) for key, moment in moments.items()},
        )

    def restore(self, states: Iterator[tuple[str, ParameterState]], *, num_updates: int) -> None:
        """Set each parameter's state, also one saved with another world size or ZeRO stage.

        This sets the master copies of the weights. The model must have been constructed with the
        same weights.
        """
        for name, state in states:
            parameter = self._parameters[name]
            self._set(parameter, state.weight, None)
            self._set(parameter, state.exp_avg, "exp_avg")
            self._set(parameter, state.exp_avg_sq, "exp_avg_sq")
        inner = self._deepspeed.optimizer.optimizer
        for flat in self._partitions():
            inner.state[flat]["step"].fill_(float(num_updates))

    def close(self) -> None:
        """Remove DeepSpeed's hooks, buffers and ``linear``; the model is unusable afterwards."""
        self._deepspeed.destroy()
        functional.linear = self._linear
        del self._model.forward  # the instance's attribute, which hides the method of the class

    def _set(self, parameter: nn.Parameter, value: torch.Tensor, key: str | None) -> None:
        value = value.to(self._ranks.device)
        if not self._is_stage_3:
            if key is None:
                self._tensors.safe_set_full_fp32_param(parameter, value)
            else:
                self._tensors.safe_set_full_optimizer_state(parameter, value, key)
            return
        # safe_set_full_* fails if the ranks' partitions differ in size, so cut out this rank's.
        num_elements = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        local = torch.zeros(num_elements, dtype=torch.float32, device=self._ranks.device)
        mine = value.flatten()[num_elements * self._ranks.rank :][:num_elements]
        local[: mine.numel()] = mine
        if key is None:
            self._tensors.safe_set_local_fp32_param(parameter, local)
        else:
            self._tensors.safe_set_local_optimizer_state(parameter, local, key)

    def _partitions(self) -> list[torch.Tensor]:
        """Return the flat float32 tensors that AdamW updates on this rank."""
        zero = self._deepspeed.optimizer
        if self._is_stage_3:
            return list(zero.fp32_partitioned_groups_flat)
        return [flat for group in zero.optimizer.param_groups for flat in group["params"]]

    def _make_moments(self) -> None:
        """Make AdamW's state as AdamW's first step would, so that the state exists at step 0."""
        zero = self._deepspeed.optimizer
        for flat in self._partitions():
            is_fused = flat.device.type == "cuda"
            zero.optimizer.state[flat] = {
                "step": torch.zeros((), device=flat.device if is_fused else "cpu"),
                **{key: torch.zeros_like(flat, requires_grad=False) for key in _MOMENTS},
            }
        if not self._is_stage_3:
            zero._lazy_init_hp_params_optimizer_state()  # links moments to parameters by name


class _Objective(nn.Module):
    """The model with its loss.

    DeepSpeed attaches hooks to the tensors that modules return. It finds no tensors in a dataclass
    (and stage 3 fails on a dataclass with slots), so the model's ``forward`` is replaced by a
    function that returns a tuple.
    """

    def __init__(self, model: nn.Module, kind: LossKind) -> None:
        super().__init__()
        self.model = model
        self._kind: LossKind = kind
        whole = model.forward

        def forward(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
            output = whole(batch)
            return output.log2_ns, output.spread

        model.forward = forward

    def forward(self, one: Pass, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective times ``scale``, and the sum of losses without gradient."""
        predicted, spread = self.model(one.batch)
        target, weight = one.log2_ns.to(predicted.device), one.weight.to(predicted.device)
        sums = losses(self._kind, predicted, spread, target, weight)
        return sums.objective * scale, sums.of_time


def _put_back(model: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Restore the model's buffers (such as the targets' mean), which DeepSpeed has cast to bf16."""
    for name, buffer in buffers.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)


@contextlib.contextmanager
def _chatter_logged() -> Iterator[None]:
    """Log what torch and DeepSpeed print during import and setup, and their warnings, as DEBUG.

    Stdout is for the command's result, and users can do nothing about warnings of one library that
    concern another library.
    """
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            for line in (*printed.getvalue().splitlines(), *(str(one.message) for one in warned)):
                _logger.debug("at start: %s", line)


def _deepspeed(ranks: Ranks) -> Any:
    """Import DeepSpeed without its log on stdout, and let it join the process group."""
    os.environ.setdefault("DS_ACCELERATOR", ranks.device.type)
    os.environ.setdefault("LOCAL_RANK", str(ranks.local_rank))
    deepspeed = require("deepspeed", "train")
    chatter = logging.getLogger("DeepSpeed")
    chatter.handlers.clear()  # they write to stdout
    chatter.propagate = True
    if not deepspeed.comm.is_initialized():
        # On a CPU, DeepSpeed would compile its shared-memory collectives here. That takes up to a
        # minute and fails without a compiler; gloo has the same collectives.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return deepspeed

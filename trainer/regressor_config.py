"""Config nodes of the language-model regressor: prompt, packing, model, fit, checkpoints, log."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from llmperf_common.config import Node


class PromptConfig(Node):
    """Conversion of launches to tokens."""

    form: Literal["paper", "compact", "numeric"] = Field(
        default="numeric",
        description="paper: the published template; compact: the kernel first, then the sizes "
        "and arguments, with one token per digit; numeric: one token per number.",
    )
    max_tokens: int = Field(
        default=1024,
        ge=32,
        le=65_536,
        description="Maximum number of tokens of a prefix and one suffix.",
    )
    too_long: Literal["truncate", "drop"] = Field(
        default="truncate", description="What happens to launches above max_tokens."
    )
    vocabulary: int = Field(
        default=4096, ge=300, le=65_536, description="Vocabulary of a tokenizer trained here."
    )


class PackingConfig(Node):
    """Packing of launches into sequences."""

    lengths: tuple[int, ...] = Field(
        default=(1024, 2048),
        min_length=1,
        max_length=4,
        description="Lengths of packs in tokens, ascending; each length is compiled once.",
    )
    configs_per_kernel: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Maximum number of launch configs of a kernel in a pack.",
    )
    tokens_per_step: int = Field(
        default=16_384, ge=32, le=2**24, description="Tokens of a step, over all processes."
    )
    tokens_per_pass: int = Field(
        default=16_384,
        ge=32,
        le=2**24,
        description="Maximum number of tokens of one forward pass of a process.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 32:
            raise ValueError("packing.lengths: give ascending lengths of at least 32")
        for key in ("tokens_per_step", "tokens_per_pass"):
            if getattr(self, key) < self.lengths[-1]:
                raise ValueError(
                    f"packing.{key} = {getattr(self, key)} must be at least the longest of "
                    f"packing.lengths ({self.lengths[-1]})"
                )
        return self


class RegressorConfig(Node):
    """Backbone and head."""

    backbone: Literal["small", "codegen", "auto"] = Field(
        default="small",
        description="small: our transformer, from scratch; codegen: CodeGen with Hugging Face "
        "weights; auto: any AutoModel.",
    )
    reads: Literal["packed", "query"] = Field(
        default="packed",
        description="packed: suffixes share a prefix in one sequence; query: launches query the "
        "encoded kernel by cross-attention.",
    )
    width: int = Field(default=256, ge=16, le=8192, description="Width of backbone small.")
    depth: int = Field(default=4, ge=1, le=96, description="Blocks of backbone small.")
    heads: int = Field(default=4, ge=1, le=128, description="Attention heads of backbone small.")
    lora_rank: int = Field(
        default=0, ge=0, le=1024, description="Rank of low-rank adapters; 0 fits all weights."
    )
    activation_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass to save memory."
    )
    features: bool = Field(
        default=True, description="Join the launch features to the model's state before the head."
    )
    head: Literal["linear", "softplus"] = Field(
        default="linear",
        description="Form of the head. The paper uses softplus, on log2(us).",
    )
    head_width: int = Field(default=256, ge=8, le=8192, description="Hidden width of the head.")
    offset: Literal["none", "roofline", "gbdt"] = Field(
        default="none",
        description="Prediction that the model corrects; none: the model predicts the whole time.",
    )

    @model_validator(mode="after")
    def _offset_is_read(self) -> Self:
        if self.head == "softplus" and self.offset != "none":
            raise ValueError(
                f"regressor.offset={self.offset}: head softplus predicts the whole time; set "
                "regressor.head=linear, or regressor.offset=none"
            )
        return self


class OptimiserConfig(Node):
    """Loss, optimiser and length of the fit."""

    loss: Literal["l1", "l2", "relative"] = Field(
        default="l1", description="l1 or l2 of the log2 error, or relative error of the time."
    )
    learning_rate: float = Field(default=3e-4, gt=0, le=1, description="Highest learning rate.")
    backbone_learning_rate: float = Field(
        default=0.0, ge=0, le=1, description="Learning rate of the backbone; 0 takes learning_rate."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="cosine", description="How the learning rate falls from warm-up to final_share."
    )
    final_share: float = Field(
        default=0.02, ge=0, le=1, description="Last learning rate, as a share of the highest."
    )
    warmup_steps: int = Field(default=50, ge=0, le=10**7, description="Steps of linear warm-up.")
    max_steps: int = Field(default=1000, ge=1, le=10**9, description="Steps to fit.")
    weight_decay: float = Field(
        default=0.05, ge=0, le=10, description="Weight decay of AdamW, on matrices."
    )
    beta_2: float = Field(default=0.95, gt=0, lt=1, description="AdamW's beta 2.")
    clip_norm: float = Field(
        default=1.0, ge=0, le=1e6, description="Maximum gradient norm; 0: no limit."
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Precision of the backbone."
    )
    zero_stage: Literal[1, 2, 3] = Field(default=1, description="DeepSpeed ZeRO stage.")
    evaluate_every_steps: int = Field(
        default=100, ge=1, le=10**7, description="Steps between validations."
    )
    patience: int = Field(
        default=0,
        ge=0,
        le=10**6,
        description="Stop after this many validations without a lower loss; 0: never.",
    )


class CheckpointConfig(Node):
    """Checkpoints of a fit."""

    every_steps: int = Field(default=500, ge=1, le=10**7, description="Steps between checkpoints.")
    keep: int = Field(
        default=2, ge=2, le=100, description="Newest checkpoints to keep, beside the best one."
    )
    keep_after: bool = Field(
        default=False, description="Keep checkpoints and token cache after publishing."
    )


class LogConfig(Node):
    """Log of a fit."""

    every_steps: int = Field(default=10, ge=1, le=10**6, description="Steps between log lines.")
    tensorboard: bool = Field(
        default=True, description="Write TensorBoard events, if tensorboard is installed."
    )

"""The config tree of ``llmperf train``: model, split, fit, intervals, metrics, cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from llmperf_common.config import Node, load_config
from llmperf_common.statistics.splits import (
    DEFAULT_HELD_OUT_SHARE,
    DEFAULT_PUBLIC_SUITES,
    SplitKind,
)
from trainer.regressor_config import (
    CheckpointConfig,
    LogConfig,
    OptimiserConfig,
    PackingConfig,
    PromptConfig,
    RegressorConfig,
)

PRESET_FOLDER = "train"


class FitConfig(Node):
    """Settings that all models share."""

    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Seed of the model's own randomness."
    )
    num_threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Threads of the fit; 0 takes all cores. Equal thread counts give equal models.",
    )
    balance: Literal["none", "kernel", "decade"] = Field(
        default="none",
        description="Weights of the rows. none: all equal; kernel: equal sums for all kernels; "
        "decade: 1/sqrt(number of rows in the row's decade of time).",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Device that fits the regressor; auto takes a GPU if there is one.",
    )
    rows: Literal["active", "all"] = Field(
        default="active",
        description="Which ok rows are fitted and scored. all: every row; active: all rows but "
        "those of kernels that do nothing on their inputs (`kernels.activity` is `nothing`).",
    )
    overwrite: bool = Field(
        default=False, description="Replace any run in the output folder, even a finished one."
    )


class SplitConfig(Node):
    """Which rows go into the train, validation, calibration and test parts."""

    kind: SplitKind = Field(
        default=SplitKind.FAMILY,
        description="What is never divided: a family, a kernel or a config.",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Seed of the split.")
    held_out_share: float = Field(
        default=DEFAULT_HELD_OUT_SHARE,
        ge=0,
        le=0.9,
        description="Held-out share of the train kernels' launch configs (part seen_configs).",
    )
    public_suites: tuple[str, ...] = Field(
        default=DEFAULT_PUBLIC_SUITES,
        description="Suites whose families belong to test as a whole.",
    )


class GbdtConfig(Node):
    """Gradient-boosted trees (LightGBM) on log2(ns)."""

    num_rounds: int = Field(
        default=1500,
        ge=1,
        le=100_000,
        description="Maximum number of trees; early stopping takes fewer.",
    )
    early_stopping_rounds: int = Field(
        default=60,
        ge=1,
        le=10_000,
        description="Stop when the validation error has not fallen for this many trees.",
    )
    learning_rate: float = Field(default=0.05, gt=0, le=1, description="Shrinkage of each tree.")
    num_leaves: int = Field(
        default=31, ge=2, le=4096, description="Maximum number of leaves of a tree, unless tuned."
    )
    min_rows_in_leaf: int = Field(
        default=10, ge=1, le=100_000, description="Minimum number of rows of a leaf, unless tuned."
    )
    feature_share: float = Field(
        default=0.6, gt=0, le=1, description="Share of the features each tree may use."
    )
    row_share: float = Field(
        default=0.8, gt=0, le=1, description="Share of the rows each tree is grown on."
    )
    l2: float = Field(default=2.0, ge=0, le=1e6, description="L2 penalty on leaf values.")
    tune: bool = Field(
        default=True,
        description="Choose num_leaves and min_rows_in_leaf by family-grouped cross-validation.",
    )
    tune_min_families: int = Field(
        default=10,
        ge=4,
        le=1_000_000,
        description="Minimum number of train families for tuning; with fewer, nothing is tuned.",
    )
    tune_folds: int = Field(default=3, ge=2, le=20, description="Folds of the cross-validation.")
    tune_rows: int = Field(
        default=60_000,
        ge=100,
        le=100_000_000,
        description="Maximum number of rows used for tuning (random whole families).",
    )


class FeatureNetworkConfig(Node):
    """Small networks over the launch features, with the relative error as loss."""

    networks: int = Field(
        default=6,
        ge=1,
        le=64,
        description="Number of networks, with different seeds; their answers are averaged.",
    )
    width: int = Field(default=256, ge=8, le=4096, description="Units of a layer.")
    blocks: int = Field(default=2, ge=1, le=32, description="Residual blocks.")
    terms: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Number of summands of the predicted time, such as floor, memory, arithmetic.",
    )
    steps: int = Field(
        default=3000, ge=1, le=10_000_000, description="Training steps of each network."
    )
    kernels_per_step: int = Field(
        default=256, ge=1, le=65_536, description="Kernels drawn for a step."
    )
    configs_per_kernel: int = Field(
        default=2, ge=1, le=1024, description="Launch configs drawn from each drawn kernel."
    )
    learning_rate: float = Field(
        default=2e-3, gt=0, le=1, description="Highest learning rate (AdamW)."
    )
    weight_decay: float = Field(default=0.3, ge=0, le=10, description="Weight decay of AdamW.")
    dropout: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="Dropout: share of a block's inner units set to 0 in a step.",
    )
    noise: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Standard deviation of the noise added to the standardised features.",
    )
    log_share: float = Field(
        default=0.05,
        ge=0,
        le=100,
        description="Weight of |log2 error|; the relative error has weight 1.",
    )
    bfloat16: bool = Field(
        default=False,
        description="Multiply in bfloat16: twice as fast on some processors, with other results.",
    )


class FeatureEnsembleConfig(Node):
    """Networks (``feature_network``) and trees over the features; their answers are combined."""

    trees: int = Field(default=500, ge=1, le=100_000, description="Number of trees.")
    num_leaves: int = Field(
        default=63, ge=2, le=4096, description="Maximum number of leaves of a tree."
    )
    min_rows_in_leaf: int = Field(
        default=30, ge=1, le=100_000, description="Minimum number of rows of a leaf."
    )
    learning_rate: float = Field(default=0.06, gt=0, le=1, description="Shrinkage of each tree.")
    feature_share: float = Field(
        default=0.3, gt=0, le=1, description="Share of the features each tree may use."
    )
    row_share: float = Field(
        default=0.6, gt=0, le=1, description="Share of the rows each tree is grown on."
    )
    l2: float = Field(default=5.0, ge=0, le=1e6, description="L2 penalty on leaf values.")
    configs_per_kernel: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description="Maximum number of launch configs of a kernel for the trees.",
    )
    caution: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Where the trees predict a shorter time: 0 keeps the networks' answer, 1 takes "
        "the trees' answer.",
    )
    min_counted_kernels: int = Field(
        default=50,
        ge=1,
        le=1_000_000,
        description="If at least this many kernels have counted work, launches with counted work "
        "get their own networks and trees.",
    )
    base: str = Field(
        default="",
        description="Folder of a run with the same rows and split; its models for launches without "
        "counted work are reused. Empty: fit them.",
    )


class LogLinearConfig(Node):
    """Launch floor plus a log-linear law (ridge)."""

    ridge: float = Field(
        default=10.0, gt=0, le=1e9, description="Penalty on standardised coefficients."
    )


class ConformalConfig(Node):
    """Intervals of predictions."""

    level: float = Field(
        default=0.9, gt=0, lt=1, description="Share of times that the intervals shall contain."
    )
    by_regime: bool = Field(
        default=True,
        description="Separate interval width for each regime that has enough families.",
    )
    cross_folds: int = Field(
        default=5,
        ge=2,
        le=20,
        description="Folds of the out-of-fold errors that are added where the calibration part "
        "has too few families.",
    )


class JudgeConfig(Node):
    """How metrics are computed."""

    bootstrap_replicates: int = Field(
        default=500,
        ge=0,
        le=100_000,
        description="Number of bootstrap samples of families, for 95 % intervals; 0: no intervals.",
    )
    min_configs: int = Field(
        default=5,
        ge=2,
        le=10_000,
        description="Minimum number of rows of a kernel for a rank correlation.",
    )


class ClusterConfig(Node):
    """Placement and restarts of a training on a Ray cluster."""

    start_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=86_400,
        description="Seconds to wait at each start until all processes can be placed.",
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Maximum number of restarts in a row without a new checkpoint.",
    )


class TrainConfig(Node):
    """The root of the config tree of ``llmperf train``."""

    model: Literal[
        "gbdt", "feature-network", "feature-ensemble", "log-linear", "global-median", "regressor"
    ] = Field(default="gbdt", description="Which predictor is trained.")
    train: FitConfig = FitConfig()
    split: SplitConfig = SplitConfig()
    gbdt: GbdtConfig = GbdtConfig()
    feature_network: FeatureNetworkConfig = FeatureNetworkConfig()
    feature_ensemble: FeatureEnsembleConfig = FeatureEnsembleConfig()
    log_linear: LogLinearConfig = LogLinearConfig()
    conformal: ConformalConfig = ConformalConfig()
    judge: JudgeConfig = JudgeConfig()
    prompt: PromptConfig = PromptConfig()
    packing: PackingConfig = PackingConfig()
    regressor: RegressorConfig = RegressorConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _prompts_fit_packs(self) -> Self:
        longest = self.packing.lengths[-1]
        if self.model == "regressor" and self.prompt.max_tokens > longest:
            raise ValueError(
                f"prompt.max_tokens = {self.prompt.max_tokens} exceeds the longest of "
                f"packing.lengths ({longest}): lower prompt.max_tokens or raise packing.lengths"
            )
        return self


def load_train_config(
    preset: str,
    *,
    file: Path | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    values: dict[str, Any] | None = None,
) -> TrainConfig:
    """Return the config of a training from its preset, file, option values and ``--set``.

    Raises:
        ConfigError: The preset is unknown (the message lists the presets), or a key or value is
            bad.
    """
    return load_config(
        TrainConfig,
        preset=preset,
        preset_folder=PRESET_FOLDER,
        file=file,
        overrides=overrides,
        values=values,
    )

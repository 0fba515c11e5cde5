"""The steps of a fit from a token store: packs as tensors, with targets and weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.data.token_store import Targets, TokenStore
from trainer.fit.step_source import Pass, StepPasses
from trainer.packing.batch import PackBatch, QueryBatch
from trainer.packing.packs import Packs
from trainer.packing.schedule import Schedule, pack_schedule, query_schedule
from trainer.regressor.batch import to_torch, to_torch_query
from trainer.regressor.flops import (
    PackCount,
    count_packs,
    forward_flops,
    query_flops,
    training_passes,
)
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import PackingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSource:
    """The train part of a token store by step; ``validation`` returns the validation part.

    Attributes:
        schedule: the packs of each step.
        targets: targets of all launches of the store.
        spec: the model's spec, to count floating-point operations.
        device: the device of the batches.
    """

    schedule: Schedule[Any]
    targets: Targets
    spec: RegressorSpec
    device: torch.device

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        """Return the forward passes of ``rank`` in ``step``, counted from 1."""
        packs = self.schedule.step_packs(step - 1)
        mine = self.schedule.passes(step - 1, rank=rank, world_size=world_size)
        return StepPasses(
            passes=tuple(map(self._pass, mine)),
            total_weight=float(np.sum(self.targets.weight[packs.launch], dtype=np.float64)),
        )

    def validation(self) -> StoreValidation | None:
        """Return the validation part; None if it is empty."""
        if not np.any(self.targets.is_validation):
            return None
        return StoreValidation(source=self)

    def _pass(self, packs: Packs) -> Pass:
        batch: PackBatch | QueryBatch = self.schedule.batch(packs)
        features, offset = self.targets.features, self.targets.offset_log2_ns
        if isinstance(batch, PackBatch):
            count = count_packs(batch)
            return Pass(
                batch=to_torch(batch, features, offset, self.device),
                log2_ns=self._of_rows(self.targets.log2_ns, batch.row),
                weight=self._of_rows(self.targets.weight, batch.row),
                num_launches=count.launches,
                num_tokens=count.tokens,
                flops=self._flops(count),
            )
        return Pass(
            batch=to_torch_query(batch, features, offset, self.device),
            log2_ns=self._of_rows(self.targets.log2_ns, batch.row),
            weight=self._of_rows(self.targets.weight, batch.row),
            num_launches=int(np.sum(batch.row >= 0)),
            num_tokens=int(np.sum(batch.prefix_length) + np.sum(batch.suffix_length)),
            flops=float(training_passes(self.spec) * query_flops(self.spec, batch)),
        )

    def _flops(self, count: PackCount) -> float:
        if self.spec.config.backbone == "auto":
            return 0.0  # an unknown architecture: its operations are not counted
        return float(training_passes(self.spec) * forward_flops(self.spec, count))

    def _of_rows(self, values: npt.NDArray[Any], row: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return ``values[row]``, float32; 0 without a launch (row -1)."""
        taken = np.where(row >= 0, values[np.maximum(row, 0)], 0).astype(np.float32)
        return torch.from_numpy(taken).to(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreValidation:
    """The validation part of a token store."""

    source: StoreSource

    def passes(self, rank: int, world_size: int) -> Iterable[Pass]:
        """Yield the rank's passes; all ranks have the same number of passes."""
        schedule = self.source.schedule
        for packs in schedule.validation_passes(rank=rank, world_size=world_size):
            yield self.source._pass(packs)


def store_source(
    store: TokenStore,
    spec: RegressorSpec,
    config: PackingConfig,
    *,
    seed: int,
    device: torch.device,
) -> StoreSource:
    """Return the steps of a fit on ``store``.

    Raises:
        BadInput: A launch does not fit into the longest pack, or the train part is empty.
    """
    make = query_schedule if spec.config.reads == "query" else pack_schedule
    schedule = make(
        store.tokens,
        train=store.train_rows,
        validation=store.validation_rows,
        config=config,
        seed=seed,
    )
    return StoreSource(schedule=schedule, targets=store.targets, spec=spec, device=device)

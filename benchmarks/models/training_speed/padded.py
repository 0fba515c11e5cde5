"""The two padded recipes: one padded sequence for each launch, through transformers' own CodeGen.

*released* pads every prompt to the context of 2,048 tokens, as the paper's code does. *tuned* pads
to the next multiple of 64 and groups launches of similar length. Both read the same tokens as
packing, have the same head and are fitted by the same engine (ZeRO-2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from llmperf_common.extras import require
from trainer.data.token_store import TokenStore
from trainer.fit.step_source import Pass, StepPasses
from trainer.regressor.codegen_weights import to_their_layout
from trainer.regressor.flops import TRAINING_PASSES, PackCount, forward_flops
from trainer.regressor.model import Output, Regressor
from trainer.regressor.spec import RegressorSpec

CONTEXT = 2048
_BUCKET = 64
"""Padded lengths of the tuned recipe are multiples of this number of tokens."""

_SORTED_TOGETHER = 64
"""Number of steps whose launches are sorted by length together, before the division into batches
(tuned)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """b prompts of at most t tokens.

    Attributes:
        ids: token ids, 0 after the end, shape (b, t).
        present: 1 where a token is, shape (b, t).
        last: place of each prompt's last token, shape (b,).
    """

    ids: torch.Tensor
    present: torch.Tensor
    last: torch.Tensor


class PaddedRegressor(nn.Module):
    """transformers' CodeGen with the head and a copy of the backbone weights of ``like``."""

    def __init__(self, like: Regressor, *, checkpointing: bool) -> None:
        super().__init__()
        transformers = require("transformers", "train")
        config = transformers.CodeGenConfig(**like.spec.backbone, use_cache=False)
        self.backbone = transformers.CodeGenModel(config)
        theirs = to_their_layout(like.backbone.state_dict())
        self.backbone.load_state_dict(theirs, strict=False)  # CodeGenModel computes its buffers
        if checkpointing:
            self.backbone.gradient_checkpointing_enable()
        self.head = like.head

    def forward(self, batch: PaddedBatch) -> Output:
        """Return the predictions of b launches, shape (b, 1) each."""
        states = self.backbone(
            input_ids=batch.ids, attention_mask=batch.present, use_cache=False
        ).last_hidden_state
        taken = states[torch.arange(len(states), device=states.device), batch.last][:, None]
        nothing = torch.zeros(taken.shape[:2], device=taken.device)
        log2_ns, spread = self.head(taken, nothing[..., None], nothing)
        return Output(log2_ns=log2_ns, spread=spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedSource:
    """Steps of padded batches.

    Attributes:
        store: the prompts.
        spec: the model's spec, for the count of operations.
        device: device of the batches.
        micro_batch: maximum launches of a forward pass at the full context; with shorter launches
            a pass has more.
        launches_per_step: launches of an optimiser step.
        is_tuned: whether launches are sorted by length and padded to short lengths.
        seed: seed of the order.
    """

    store: TokenStore
    spec: RegressorSpec
    device: torch.device
    micro_batch: int
    launches_per_step: int
    is_tuned: bool
    seed: int = 0

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        """Return the passes of ``step``, counted from 1; there is only one process."""
        assert (rank, world_size) == (0, 1), "measured in one process"
        rows = self._rows_of(step)
        return StepPasses(
            passes=[self._pass(part) for part in self._parts(rows)],
            total_weight=float(len(rows)),
        )

    def validation(self, rows: npt.NDArray[np.int64]) -> Iterator[Pass]:
        """Yield passes over ``rows``."""
        yield from map(self._pass, self._parts(rows))

    def _rows_of(self, step: int) -> npt.NDArray[np.int64]:
        rows, size = self.store.train_rows, self.launches_per_step
        steps_a_window = 1
        if self.is_tuned:  # at most an epoch, so that no launch is in the window twice
            steps_a_window = max(1, min(_SORTED_TOGETHER, len(rows) // size))
        a_window = steps_a_window * size
        window, within = divmod(step - 1, steps_a_window)
        start = window * a_window
        epoch, begin = divmod(start, len(rows))
        order = np.concatenate(
            [
                np.random.default_rng((self.seed, number)).permutation(rows)
                for number in range(epoch, epoch + 2 + a_window // len(rows))
            ]
        )[begin : begin + a_window]
        if not self.is_tuned:
            return order
        ordered = order[np.argsort(self._lengths(order), kind="stable")].reshape(-1, size)
        start = np.random.default_rng((self.seed, window, 1)).random()
        # Consecutive steps mix short, medium and long launches, so their rate is that of all steps.
        return ordered[_evenly_spread(len(ordered), start)[within]]

    def _lengths(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        tokens = self.store.tokens
        return tokens.prefix_lengths[tokens.group[rows]] + tokens.suffix_lengths[rows]

    def _parts(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        rows = rows[np.argsort(self._lengths(rows), kind="stable")] if self.is_tuned else rows
        begin = 0
        while begin < len(rows):
            size = self.micro_batch
            if self.is_tuned:  # as many tokens as the micro-batch has at the full context
                longest = _rounded(int(self._lengths(rows[begin:]).max()))
                size = max(1, self.micro_batch * CONTEXT // longest)
            yield rows[begin : begin + size]
            begin += size

    def _pass(self, rows: npt.NDArray[np.int64]) -> Pass:
        tokens, lengths = self.store.tokens, self._lengths(rows)
        width = _rounded(int(lengths.max())) if self.is_tuned else CONTEXT
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            group = int(tokens.group[row])
            prefix = tokens.prefix_ids[tokens.prefix_start[group] : tokens.prefix_start[group + 1]]
            suffix = tokens.suffix_ids[tokens.suffix_start[row] : tokens.suffix_start[row + 1]]
            ids[place, : lengths[place]] = np.concatenate((prefix, suffix))
        present = np.arange(width) < lengths[:, None]
        count = PackCount(
            tokens=int(lengths.sum()),
            pairs=int((lengths * (lengths + 1) // 2).sum()),
            launches=len(rows),
        )
        log2_ns = torch.from_numpy(self.store.targets.log2_ns[rows].astype(np.float32))[:, None]
        return Pass(
            batch=PaddedBatch(
                ids=self._tensor(ids),
                present=self._tensor(present.astype(np.int64)),
                last=self._tensor(lengths - 1),
            ),
            log2_ns=log2_ns.to(self.device),
            weight=torch.ones_like(log2_ns, device=self.device),
            num_launches=len(rows),
            num_tokens=count.tokens,
            flops=float(TRAINING_PASSES * forward_flops(self.spec, count)),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def _evenly_spread(count: int, start: float) -> npt.NDArray[np.int64]:
    """Return an order of ``count`` places in which the first n are evenly spread, for every n."""
    golden = (start + np.arange(count) * (5**0.5 - 1) / 2) % 1
    return np.argsort(np.argsort(golden))


def _rounded(length: int) -> int:
    return min(-(-length // _BUCKET) * _BUCKET, CONTEXT)

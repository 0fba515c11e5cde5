"""Small hand-made packs and models for tests of the regressor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer.packing.batch import PackBatch, QueryBatch
from trainer.regressor.backbones.base import Backbone
from trainer.regressor.backbones.codegen import codegen_config
from trainer.regressor.batch import TorchBatch, TorchQueryBatch, to_torch, to_torch_query
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import RegressorConfig

VOCABULARY, SLOTS, FEATURES, CONTEXT = 50, 6, 5, 128

QWEN2 = {
    "model_type": "qwen2", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
STARCODER2 = {
    "model_type": "starcoder2", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "residual_dropout": 0.1,
    "attention_dropout": 0.1, "embedding_dropout": 0.1, "sliding_window": None,
}  # fmt: skip
CODEGEN = codegen_config(width=32, depth=2, heads=4, rotary_dims=4, vocabulary=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A suffix: ids (negative for numeric tokens), values, and the launch's row."""

    ids: tuple[int, ...]
    values: tuple[float, ...]
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTokens:
    """A prefix with its launches."""

    prefix: tuple[int, ...]
    launches: tuple[Launch, ...]


def make_spec(
    backbone: str = "small",
    own: Mapping[str, Any] | None = None,
    slots: int = SLOTS,
    **changes: Any,
) -> RegressorSpec:
    known = {"small": {}, "codegen": CODEGEN, "auto": QWEN2}
    values = {"width": 16, "depth": 2, "heads": 2, "head_width": 8, "backbone": backbone, **changes}
    return RegressorSpec(
        config=RegressorConfig.from_mapping(values),
        vocabulary=VOCABULARY,
        num_slots=slots,
        feature_names=tuple(f"feature_{i}" for i in range(FEATURES)),
        context=CONTEXT,
        backbone=known[backbone] if own is None else own,
    )


def make_model(spec: RegressorSpec, *, sharp: float = 1.0) -> Regressor:
    """Return a model whose last layer is not zero, so that its answers depend on all its input."""
    model = build_regressor(spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        weight = model.head.output.weight
        weight.copy_(torch.randn(weight.shape, generator=generator) * sharp)
        for name, adapter in model.named_parameters():
            if name.endswith("lora_b"):
                adapter.copy_(torch.randn(adapter.shape, generator=generator) * 0.1)
    return model


def make_kernels(
    shapes: Sequence[tuple[int, Sequence[int]]], slots: int = SLOTS
) -> list[KernelTokens]:
    """Return kernels with these prefix and suffix lengths; row numbers continue over kernels."""
    rng = np.random.default_rng(5)
    kernels, row = [], 0
    for prefix_length, suffix_lengths in shapes:
        launches = []
        for length in suffix_lengths:
            ids = rng.integers(1, VOCABULARY, length)
            if slots:
                ids = np.where(rng.random(length) < 0.5, -1 - rng.integers(0, slots, length), ids)
            values = np.where(ids < 0, np.floor(2 ** rng.uniform(0, 40, length)), 0.0)
            launches.append(Launch(ids=tuple(ids.tolist()), values=tuple(values.tolist()), row=row))
            row += 1
        prefix = tuple(rng.integers(1, VOCABULARY, prefix_length).tolist())
        kernels.append(KernelTokens(prefix=prefix, launches=tuple(launches)))
    return kernels


def launches_of(kernels: Sequence[KernelTokens]) -> Iterator[tuple[KernelTokens, Launch]]:
    for kernel in kernels:
        for launch in kernel.launches:
            yield kernel, launch


def make_packs(packs: Sequence[Sequence[KernelTokens]], length: int) -> PackBatch:
    most = max(sum(len(kernel.launches) for kernel in pack) for pack in packs) + 1
    shape = (len(packs), length)
    ids, position, suffix = (np.zeros(shape, np.int32) for _ in range(3))
    values, owner = np.zeros(shape), np.full(shape, -1, np.int32)
    query = np.zeros((len(packs), most), np.int32)
    row = np.full((len(packs), most), -1, np.int64)
    for b, pack in enumerate(packs):
        place, number = 0, 0
        for k, kernel in enumerate(pack):
            parts = [(kernel.prefix, (0.0,) * len(kernel.prefix), 0, -1)]
            parts += [(launch.ids, launch.values, 1, launch.row) for launch in kernel.launches]
            for tokens, numbers, is_suffix, of_row in parts:
                at = slice(place, place + len(tokens))
                place += len(tokens)
                ids[b, at], values[b, at], owner[b, at] = tokens, numbers, k
                position[b, at] = np.arange(len(tokens)) + is_suffix * len(kernel.prefix)
                if is_suffix:
                    suffix[b, at] = number + 1
                    query[b, number], row[b, number] = place - 1, of_row
                    number += 1
    return PackBatch(
        ids=ids, values=values, position=position, kernel=owner, suffix=suffix, query=query, row=row
    )


def make_queries(kernels: Sequence[KernelTokens], *, extra: int = 0) -> QueryBatch:
    """Return all kernels as one batch, with ``extra`` padding in every dimension."""
    g, k = len(kernels) + extra, max(len(kernel.launches) for kernel in kernels) + extra
    t = max(len(kernel.prefix) for kernel in kernels) + extra
    s = max(len(launch.ids) for _, launch in launches_of(kernels)) + extra
    ids, length = np.zeros((g, t), np.int32), np.zeros(g, np.int32)
    suffix_ids, suffix_values = np.zeros((g, k, s), np.int32), np.zeros((g, k, s))
    suffix_length, row = np.zeros((g, k), np.int32), np.full((g, k), -1, np.int64)
    for i, kernel in enumerate(kernels):
        ids[i, : len(kernel.prefix)], length[i] = kernel.prefix, len(kernel.prefix)
        for j, launch in enumerate(kernel.launches):
            n = len(launch.ids)
            suffix_ids[i, j, :n], suffix_values[i, j, :n] = launch.ids, launch.values
            suffix_length[i, j], row[i, j] = n, launch.row
    return QueryBatch(
        prefix_ids=ids, prefix_length=length, suffix_ids=suffix_ids, suffix_values=suffix_values,
        suffix_length=suffix_length, row=row,
    )  # fmt: skip


def make_tables(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features, of which some are unknown, and offsets."""
    rng = np.random.default_rng(6)
    features = rng.normal(size=(num_rows, FEATURES))
    features[rng.random(features.shape) < 0.2] = np.nan
    return features, rng.uniform(8, 16, num_rows)


def as_batch(batch: PackBatch | QueryBatch) -> TorchBatch | TorchQueryBatch:
    features, offset = make_tables(1000)
    if isinstance(batch, PackBatch):
        return to_torch(batch, features, offset, "cpu")
    return to_torch_query(batch, features, offset, "cpu")


def alone(model: Regressor, kernel: KernelTokens, launch: Launch) -> torch.Tensor:
    """Return the slow reference: prefix and suffix as one plain causal sequence; shape (2,)."""
    assert isinstance(model.backbone, Backbone)
    pad = KernelTokens(prefix=kernel.prefix, launches=(launch,))
    length = len(kernel.prefix) + len(launch.ids)
    batch = as_batch(make_packs([[pad]], length))
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    embeddings = model._embed(batch.ids, batch.numbers)
    states = model.backbone(embeddings, torch.arange(length)[None], causal)[:, -1:]
    both = model.head(states, batch.features[:, :1], batch.offset[:, :1])
    return torch.stack(both)[:, 0, 0]


def packed_rows(model: Regressor, batch: PackBatch | QueryBatch) -> torch.Tensor:
    """Return the model's output for each row of the batch, shape (rows, 2)."""
    output = model(as_batch(batch))
    both = torch.stack((output.log2_ns, output.spread), dim=-1)[torch.from_numpy(batch.row >= 0)]
    order = torch.from_numpy(np.argsort(batch.row[batch.row >= 0]))
    return both[order]

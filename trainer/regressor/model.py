"""The regressor: maps tokens and features of launches to log2(ns) and a spread.

Owns the composition of backbone, numeric tokens and head, and its construction from a spec.
``weights.py`` owns weights on disk, ``trainer/fit`` the optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

import torch
from torch import nn

from trainer.errors import BadInput
from trainer.regressor.attention import pack_mask
from trainer.regressor.backbones.base import Backbone
from trainer.regressor.backbones.codegen import CodeGenBackbone, CodeGenShape
from trainer.regressor.backbones.hf_auto import AutoBackbone
from trainer.regressor.backbones.lora import adapt
from trainer.regressor.backbones.query_reader import QueryReader
from trainer.regressor.backbones.small import SmallBackbone
from trainer.regressor.batch import AnyBatch, Numbers, TorchBatch, TorchQueryBatch
from trainer.regressor.cached_reading import suffix_states
from trainer.regressor.head import Head, SoftplusHead
from trainer.regressor.numeric import NumericEmbedding
from trainer.regressor.spec import RegressorSpec

AttentionForm = Literal["auto", "dense"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The model's output for each launch of a batch; also finite for padding launches.

    Attributes:
        log2_ns: log2 of the predicted times in ns, shape (b, m), float32.
        spread: expected abs(log2(measured / predicted)), shape (b, m), float32, positive.
    """

    log2_ns: torch.Tensor
    spread: torch.Tensor


class Regressor(nn.Module):
    """Backbone, numeric tokens and head. ``build_regressor`` makes one.

    Attributes:
        spec: the spec that it was built from.
        attention: ``dense`` uses the dense mask even on a GPU.
    """

    def __init__(
        self,
        *,
        spec: RegressorSpec,
        backbone: Backbone | QueryReader,
        numeric: NumericEmbedding | None,
        head: Head | SoftplusHead,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.attention: AttentionForm = "auto"
        self.backbone = backbone
        self.numeric = numeric
        self.head = head

    def forward(self, batch: AnyBatch) -> Output:
        """Return log2(ns) and spread of each launch of the batch.

        Args:
            batch: ``TorchBatch`` for ``reads = "packed"``, ``TorchQueryBatch`` for ``"query"``. A
                model with ``takes_cache`` also reads a ``TorchQueryBatch`` when gradients are off.

        Raises:
            TypeError: The model does not read this kind of batch, or not while gradients are on.
        """
        if isinstance(batch, TorchBatch) and isinstance(self.backbone, Backbone):
            states = self._read_packs(self.backbone, batch)
        elif isinstance(batch, TorchQueryBatch) and isinstance(self.backbone, QueryReader):
            states = self.backbone(
                self._embed(batch.prefix_ids, None),
                batch.prefix_present,
                self._embed(batch.suffix_ids, batch.suffix_numbers),
                batch.suffix_present,
            )
        elif (
            isinstance(batch, TorchQueryBatch) and self.takes_cache and not torch.is_grad_enabled()
        ):
            states = self._read_cached(batch)
        else:
            raise TypeError(
                f"{type(self.backbone).__name__} does not read {type(batch).__name__} with "
                f"gradients {'on' if torch.is_grad_enabled() else 'off'}"
            )
        log2_ns, spread = self.head(states, batch.features, batch.offset)
        return Output(log2_ns=log2_ns, spread=spread)

    @property
    def takes_cache(self) -> bool:
        """Whether the model is a decoder that can read suffixes with a ``PrefixCache``."""
        return isinstance(self.backbone, Backbone) and self.backbone.takes_cache

    def compile_blocks(self) -> None:
        """Compile the backbone's blocks for a GPU; see ``Backbone.compile_blocks``."""
        if isinstance(self.backbone, Backbone):
            self.backbone.compile_blocks()

    def _read_packs(self, backbone: Backbone, batch: TorchBatch) -> torch.Tensor:
        embeddings = self._embed(batch.ids, batch.numbers)
        mask = pack_mask(
            batch.kernel,
            batch.suffix,
            dtype=embeddings.dtype,
            dense=self.attention == "dense" or not backbone.takes_blocks,
        )
        states: torch.Tensor = backbone(embeddings, batch.position, mask, batch.query)
        return states

    def _read_cached(self, batch: TorchQueryBatch) -> torch.Tensor:
        """Return the launches' states, shape (g, k, width); reads each prefix once."""
        assert isinstance(self.backbone, Backbone), "takes_cache is true only for a Backbone"
        return torch.stack(
            [
                suffix_states(
                    self.backbone,
                    self._embed(
                        batch.prefix_ids[number, : int(batch.prefix_present[number].sum())], None
                    ),
                    self._embed(batch.suffix_ids[number], batch.suffix_numbers.of(number)),
                    batch.suffix_present[number],
                )
                for number in range(len(batch.prefix_ids))
            ]
        )

    def _embed(self, ids: torch.Tensor, numbers: Numbers | None) -> torch.Tensor:
        """Return the embeddings of text and numeric tokens, shape (*ids.shape, width)."""
        text = self.backbone.embed(ids.clamp_min(0))
        if self.numeric is None or numbers is None:
            return text
        number = self.numeric((-1 - ids).clamp_min(0), numbers).to(text.dtype)
        return torch.where((ids < 0)[..., None], number, text)


def build_regressor(spec: RegressorSpec, *, seed: int = 0) -> Regressor:
    """Build a regressor with random weights, in float32 on the CPU.

    Args:
        spec: spec of the regressor.
        seed: seed of the weights; the state of torch's global generator does not change.

    Raises:
        BadInput: The backbone's config is unusable, or too small for the vocabulary or context.
        MissingExtra: Backbone auto needs ``transformers``, which is not installed.
    """
    config = spec.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = _build_backbone(spec)
        if config.lora_rank:
            adapt(backbone, config.lora_rank)
        numeric = NumericEmbedding(spec.num_slots, backbone.width) if spec.num_slots else None
        head: Head | SoftplusHead
        match config.head:
            case "softplus":
                head = SoftplusHead(width=backbone.width)
            case "linear":
                num_features = len(spec.feature_names) if config.features else 0
                head = Head(
                    width=backbone.width, num_features=num_features, hidden=config.head_width
                )
            case _:
                assert_never(config.head)
    return Regressor(spec=spec, backbone=backbone, numeric=numeric, head=head)


def without_adapters(spec: RegressorSpec) -> RegressorSpec:
    """Return the spec of the same regressor after its adapters are merged."""
    return replace(spec, config=spec.config.model_copy(update={"lora_rank": 0}))


def _build_backbone(spec: RegressorSpec) -> Backbone | QueryReader:
    config = spec.config
    if config.reads == "query" and config.backbone != "small":
        raise BadInput(
            f"regressor.reads = 'query' needs backbone small, not {config.backbone!r}: set "
            f"regressor.backbone = 'small', or regressor.reads = 'packed'"
        )
    match config.backbone:
        case "small":
            build = QueryReader if config.reads == "query" else SmallBackbone
            return build(
                vocabulary=spec.vocabulary,
                width=config.width,
                depth=config.depth,
                heads=config.heads,
                checkpointing=config.activation_checkpointing,
            )
        case "codegen":
            shape = CodeGenShape.from_config(spec.backbone)
            _check_fits(spec, shape.vocabulary, shape.context)
            return CodeGenBackbone(shape, checkpointing=config.activation_checkpointing)
        case "auto":
            auto = AutoBackbone(spec.backbone, checkpointing=config.activation_checkpointing)
            rows = auto.model.get_input_embeddings().weight.shape[0]
            _check_fits(spec, rows, getattr(auto.model.config, "max_position_embeddings", None))
            return auto
        case _:
            assert_never(config.backbone)


def _check_fits(spec: RegressorSpec, vocabulary: int, context: int | None) -> None:
    if spec.vocabulary > vocabulary:
        raise BadInput(
            f"the tokenizer produces {spec.vocabulary} tokens, but the checkpoint's embedding has "
            f"{vocabulary} rows: use the checkpoint's own tokenizer"
        )
    if context is not None and spec.context > context:
        raise BadInput(
            f"prompt.max_tokens = {spec.context}, but the checkpoint reads at most {context} "
            f"tokens: set prompt.max_tokens to {context} or less"
        )

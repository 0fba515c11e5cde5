"""Any decoder of ``transformers`` as a backbone; slower than ``codegen.py`` and ``small.py``.

The only module that builds models of ``transformers``. An architecture must take embeddings,
position ids and a four-dimensional mask, and must use all three. A trial at construction rejects
other architectures, because their packed predictions would silently differ from unpacked ones. The
trial calls a model as training does: with embeddings that are of no token, as those of numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask

from llmperf_common.extras import require
from trainer.errors import BadInput
from trainer.regressor.attention import LEAST_HEAD, Mask, dense_mask
from trainer.regressor.backbones.base import Backbone, states_at
from trainer.regressor.backbones.hf_limits import check_counts, limited_tensors
from trainer.regressor.precise import widen
from trainer.regressor.prefix_cache import PrefixCache

_TOLERANCE = 1e-3
"""Largest relative difference of packed and unpacked states, in float32. Models that use the mask
differ by 1e-6, models that ignore it by 1e-1."""

_NAMES_OF_OTHERS = frozenset(
    {
        "attribute_map", "auto_map", "backbone", "num_labels", "use_pretrained_backbone",
        "use_timm_backbone",
    }
)  # fmt: skip
"""Config keys that are removed. Most of them name code in the checkpoint's folder or another model.
``attribute_map`` gives keys other names: with it, any key could be one of these.
``num_labels`` is the number of labels of a head that LLMPerf does not build; ``transformers`` would
make two dictionaries of that length."""

_NAMES_OF_CODE = ("attn_implementation", "experts_implementation", "implementation_internal")
"""Endings of config keys that may name a repository with code; ``transformers`` downloads and runs
that code if the package ``kernels`` is installed. These keys are removed: this module chooses the
attention itself."""

_ERRORS_OF_A_CONFIG = (
    ValueError, TypeError, LookupError, AttributeError, ImportError, ArithmeticError,
    AssertionError, RuntimeError,
)  # fmt: skip
"""Errors by which ``transformers`` and torch report an impossible number in a config. For example,
zero heads give a ZeroDivisionError, and a negative size gives a RuntimeError of torch."""

_TRIAL_PREFIX, _TRIAL_SUFFIX = 5, 3
"""Number of tokens of the trial's prefix, and of each of its two suffixes."""


class AutoBackbone(Backbone):
    """A model of ``transformers`` without its language-model head, with random weights.

    Args:
        config: the model's ``config.json``.
        checkpointing: recompute activations in the backward pass to save memory.

    Raises:
        BadInput: ``transformers`` does not know the architecture, or the model cannot read packs.
        MissingExtra: ``transformers`` is not installed.
    """

    def __init__(self, config: Mapping[str, Any], *, checkpointing: bool = False) -> None:
        super().__init__()
        self.model = _from_config(config)
        self.takes_cache = False
        with _supported(self.model):
            self.width = _width_of(self.model)
            self.takes_blocks = (
                bool(getattr(self.model, "_supports_flex_attn", False))
                and _head_dims(self.model.config) >= LEAST_HEAD
            )
            if checkpointing:
                self.model.gradient_checkpointing_enable(
                    gradient_checkpointing_kwargs={"use_reentrant": False}
                )
        if (
            next(self.model.parameters()).device.type != "meta"
        ):  # without weights there is nothing to try
            check_reads_packs(self)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of text tokens, shape (b, t, width)."""
        embeddings: torch.Tensor = self.model.get_input_embeddings()(ids)
        return embeddings

    def forward(
        self,
        embeddings: torch.Tensor,
        position: torch.Tensor,
        mask: Mask,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states after the final norm; see ``Backbone.forward``."""
        if isinstance(mask, PrefixCache):
            raise TypeError("transformers' attention does not take our cache of a prefix")
        if isinstance(mask, BlockMask):
            self._attend_by("flex_attention")
            given: Any = mask
        else:
            self._attend_by("sdpa" if getattr(self.model, "_supports_sdpa", False) else "eager")
            # Both implementations of transformers (sdpa, eager) add the mask to the scores.
            least = torch.finfo(embeddings.dtype).min
            zero = torch.zeros((), dtype=embeddings.dtype, device=embeddings.device)
            given = zero.masked_fill(~mask, least)
        output = self.model(
            inputs_embeds=embeddings, position_ids=position, attention_mask=given, use_cache=False
        )
        return widen(states_at(output.last_hidden_state, at))

    def layers(self) -> Iterable[nn.Module]:
        """Return the longest list of modules in the model: its blocks."""
        lists = [module for module in self.model.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=nn.ModuleList())

    def _attend_by(self, implementation: str) -> None:
        if self.model.config._attn_implementation != implementation:
            self.model.set_attn_implementation(implementation)


def check_reads_packs(backbone: Backbone) -> None:
    """Check that a model's packed states equal its unpacked states.

    Raises:
        BadInput: The model ignores the mask or the position ids, or does not take them, or it takes
            only embeddings of tokens.
    """
    inner = getattr(backbone, "model", backbone)
    name = type(inner).__name__
    training = backbone.training
    backbone.eval()
    try:
        with _supported(inner, "read packs"), torch.no_grad():
            difference = _trial(backbone)
    finally:
        backbone.train(training)
    if not difference <= _TOLERANCE:
        raise BadInput(
            f"{name} ignores the attention mask or the position ids: its states of a sequence in "
            f"a pack and of the same sequence alone differ by {difference:.1e} relative to their "
            f"size ({_TOLERANCE:.0e} is allowed); choose another architecture"
        )


@contextmanager
def _supported(model: nn.Module, what: str = "be used") -> Iterator[None]:
    """Turn an exception of a model's own code into BadInput; a BadInput passes through."""
    try:
        yield
    except BadInput:
        raise
    except _ERRORS_OF_A_CONFIG as error:
        detail = f"{type(error).__name__}: {_one_line(error)}"
        raise BadInput(
            f"{type(model).__name__} cannot {what}: LLMPerf does not support this architecture, "
            f"because of {detail}; choose another model"
        ) from error


def _width_of(model: Any) -> int:
    try:
        return int(model.get_input_embeddings().weight.shape[1])
    except (AttributeError, NotImplementedError):
        raise BadInput(
            f"{type(model).__name__} has no token embedding: choose an architecture that reads text"
        ) from None


def _head_dims(config: Any) -> int:
    """Return the number of dimensions of an attention head; 0 if the config does not say it."""
    named = getattr(config, "head_dim", None)
    heads = getattr(config, "num_attention_heads", 0)
    return int(named or (config.hidden_size // heads if heads else 0))


def _trial(backbone: Backbone) -> float:
    """Return the largest difference of packed and unpacked states, divided by their maximum."""
    device = next(backbone.parameters()).device
    ids = torch.arange(1, 1 + _TRIAL_PREFIX + 2 * _TRIAL_SUFFIX, device=device)[None]
    middle = _TRIAL_PREFIX + _TRIAL_SUFFIX
    prefix, first, second = ids[:, :_TRIAL_PREFIX], ids[:, _TRIAL_PREFIX:middle], ids[:, middle:]
    suffix = torch.tensor([0] * _TRIAL_PREFIX + [1] * _TRIAL_SUFFIX + [2] * _TRIAL_SUFFIX)
    suffix = suffix.to(device)[None]
    position = torch.arange(middle, device=device)
    packed_position = torch.cat((position, position[_TRIAL_PREFIX:]))[None]
    embeddings = _mixed(backbone, ids)
    packed = backbone(embeddings, packed_position, dense_mask(torch.zeros_like(suffix), suffix))
    causal = torch.ones(middle, middle, dtype=torch.bool, device=device).tril()[None, None]
    differences = []
    for own, start in ((first, _TRIAL_PREFIX), (second, middle)):
        alone = backbone(_mixed(backbone, torch.cat((prefix, own), dim=1)), position[None], causal)
        apart = packed[:, start : start + _TRIAL_SUFFIX] - alone[:, _TRIAL_PREFIX:]
        differences.append(apart.abs().max() / alone.abs().max())
    return float(torch.stack(differences).max())


def _mixed(backbone: Backbone, ids: torch.Tensor) -> torch.Tensor:
    """Return embeddings of which every second is that of no token, as a number's in training.

    Some architectures search the embedding for the rows they are given (Gemma 4 with embeddings
    per layer), and fail only if a row is not there.
    """
    text = backbone.embed(ids)
    return torch.where((ids % 2 == 0)[..., None], text.roll(1, dims=-1), text)


def _without_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that name code or models to load, also in nested configs."""
    return {
        key: _without_names(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _NAMES_OF_OTHERS and not key.endswith(_NAMES_OF_CODE)
    }


def _wrong_types() -> Any:
    """Return the base class of the errors of a config whose values have wrong types.

    Recent versions of ``transformers`` check the types with ``huggingface_hub``; older ones do not.
    """
    return getattr(require("huggingface_hub.errors", "train"), "StrictDataclassError", ValueError)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _from_config(config: Mapping[str, Any]) -> Any:
    transformers = require("transformers", "train")
    values = _without_names(config)
    kind = values.pop("model_type", None)
    values.pop("dtype", None)  # the type of the checkpoint's weights; the model gets float32
    values.pop("torch_dtype", None)
    # No dropout, so that packed training equals unpacked, and resumed equals uninterrupted.
    values = {
        key: 0.0 if "drop" in key and type(value) in (float, int) else value
        for key, value in values.items()
    }
    try:
        check_counts(values)
        parsed = transformers.AutoConfig.for_model(kind, **values)
        parsed.use_cache = False
        with limited_tensors():
            model = transformers.AutoModel.from_config(
                parsed, dtype=torch.float32, trust_remote_code=False
            )
    except (*_ERRORS_OF_A_CONFIG, _wrong_types()) as error:
        raise BadInput(
            f"transformers cannot build model_type {str(kind)[:80]!r}: {_one_line(error)}: correct "
            "its config.json, or choose another model"
        ) from None
    return cast("Any", model)

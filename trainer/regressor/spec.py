"""The spec of a regressor, from which it is built; stored beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmperf_common.config import ConfigError
from llmperf_common.files.json_numbers import whole
from trainer.errors import BadInput
from trainer.regressor_config import RegressorConfig

_MOST = 2**31
"""Limit of the sizes: tokens are 32-bit numbers."""

FORMAT = 1
"""Version of the JSON; raised when older readers would misread a new file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressorSpec:
    """The architecture and inputs of a regressor.

    Attributes:
        config: the run's ``regressor`` node.
        vocabulary: number of text tokens that the tokenizer can produce.
        num_slots: number of slots of numeric tokens; 0 if the prompt has none.
        feature_names: launch features in the order of the batch's columns; the head reads them if
            ``config.features`` is true.
        context: longest prompt (prefix + suffix) in tokens.
        backbone: the backbone's own ``config.json``; empty for backbone small.
    """

    config: RegressorConfig
    vocabulary: int
    num_slots: int
    feature_names: tuple[str, ...]
    context: int
    backbone: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, for ``from_json``."""
        return {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "vocabulary": self.vocabulary,
            "num_slots": self.num_slots,
            "feature_names": list(self.feature_names),
            "context": self.context,
            "backbone": dict(self.backbone),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RegressorSpec:
        """Read what ``to_json`` wrote.

        Raises:
            BadInput: A key is missing or wrong, or another version wrote the file.
        """
        if values.get("format") != FORMAT:
            raise BadInput(
                f"regressor of format {values.get('format')!r}, but this version reads format "
                f"{FORMAT}: use the release that wrote it, or train again"
            )
        try:
            return cls(
                config=RegressorConfig.from_mapping(values["config"]),
                vocabulary=whole(values["vocabulary"], "vocabulary", least=1, most=_MOST),
                num_slots=whole(values["num_slots"], "num_slots", least=0, most=_MOST),
                feature_names=_names(values["feature_names"]),
                context=whole(values["context"], "context", least=1, most=_MOST),
                backbone=dict(values["backbone"]),
            )
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise BadInput(f"regressor's spec: {type(error).__name__}: {error}") from None


def _names(names: object) -> tuple[str, ...]:
    """Return the list of features; the model's weights limit its length."""
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError("feature_names is not a list of names")
    if len(set(names)) < len(names):
        raise ValueError("feature_names lists a feature twice")
    return tuple(names)

"""The table of models by name: the class that loads each, and the libraries that each needs.

A model's module is imported only when that model is loaded.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from llmperf_common.extras import require_installed
from trainer.data.foreign_files import MEND, reading
from trainer.errors import BadInput
from trainer.interface import Predictor

_CLASSES: Final[dict[str, tuple[str, str]]] = {
    "gbdt": ("trainer.baselines.gbdt", "Gbdt"),
    "feature-ensemble": ("trainer.baselines.feature_ensemble", "FeatureEnsemble"),
    "feature-network": ("trainer.baselines.feature_network", "FeatureNetwork"),
    "log-linear": ("trainer.baselines.simple", "LaunchFloorLogLinear"),
    "global-median": ("trainer.baselines.simple", "GlobalMedian"),
    "regressor": ("trainer.regressor.predictor", "RegressorPredictor"),
    "roofline": ("trainer.baselines.roofline", "AnalyticRoofline"),
    "nearest-kernel": ("trainer.baselines.nearest_kernel", "NearestKernel"),
}

_Libraries = tuple[str, tuple[str, ...]]
_READ_WITH: Final[dict[str, _Libraries]] = {
    "gbdt": ("gbdt", ("lightgbm",)),
    "regressor": ("train", ("torch", "safetensors", "tokenizers")),
}
_FITTED_WITH: Final[dict[str, _Libraries]] = {
    "gbdt": ("gbdt", ("lightgbm",)),
    "feature-ensemble": ("train", ("torch", "lightgbm")),
    "feature-network": ("train", ("torch",)),
    "regressor": ("train", ("torch", "deepspeed", "safetensors", "tokenizers")),
}
"""Maps a model to its extra and the extra's libraries for fitting. Other models need no extra."""


def require_to_fit(name: str) -> None:
    """Check that the libraries that fit the model ``name`` are installed.

    Raises:
        MissingExtra: One is missing; the message names the extra that installs all of them.
    """
    if name in _FITTED_WITH:
        extra, modules = _FITTED_WITH[name]
        require_installed(modules, extra)


def load_model(name: str, folder: Path) -> Predictor:
    """Read the model ``name`` from the folder it was saved in.

    Raises:
        BadInput: This release does not know the name, or a file of the folder is damaged.
        MissingExtra: The model's library is not installed.
    """
    if name not in _CLASSES:
        raise BadInput(
            f"{folder}: model {name!r} is not one of {', '.join(sorted(_CLASSES))}: use the "
            "release that wrote this run, or train it again"
        )
    if name in _READ_WITH:
        extra, modules = _READ_WITH[name]
        require_installed(modules, extra)
    module, attribute = _CLASSES[name]
    kind = getattr(importlib.import_module(module), attribute)
    with reading(f"model {name!r} in {folder}", MEND):
        model: Predictor = kind.load(folder)
        return model

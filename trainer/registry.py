"""The models we know by name: which class reads each back. Imports none of them before it is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from trainer.data.foreign_files import reading
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


def load_model(name: str, folder: Path) -> Predictor:
    """Read the model ``name`` from the folder it was saved in.

    Raises:
        BadInput: The name is not known to this release, or the folder is not as it was saved.
        MissingExtra: The model's library is not installed.
    """
    if name not in _CLASSES:
        raise BadInput(
            f"{folder}: model {name!r} is not one of {', '.join(sorted(_CLASSES))}: made by another release?"
        )
    module, attribute = _CLASSES[name]
    kind = getattr(importlib.import_module(module), attribute)
    with reading(f"model {name!r} in {folder}"):
        model: Predictor = kind.load(folder)
        return model

"""The models that come with the package, in the folder ``trainer/shipped``.

A shipped model is a run without the parts that prediction does not need: the predictions of its
training, the baselines, and the arguments and analysis of the fitted kernels.
``python -m benchmarks.models.shipped_model`` makes such a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED_FOLDER: Final = Path(__file__).resolve().parents[1] / "shipped"
"""Folder of the shipped model, both in an installed wheel and in a checkout."""
DEFAULT_MODEL: Final = "h200"
"""The model that is used when no model is named and ``runs/`` has no run."""
_MARK = "published.json"


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package, sorted."""
    return sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{_MARK}"))


def shipped_run(name: str = DEFAULT_MODEL) -> Path | None:
    """Return the run of the shipped model ``name``; None if there is no such model."""
    return SHIPPED_FOLDER / name if name in shipped_models() else None

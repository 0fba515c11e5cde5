"""The models that come with the package: where they lie, and which is taken when none is named.

Owns the folder ``trainer/shipped``. A model there is a run, less what only its training needed: the rows it
predicted, the baselines beside it, and the arguments and analysis of the kernels that were fitted.
``python -m benchmarks.models.shipped_model`` makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED_FOLDER: Final = Path(__file__).resolve().parents[1] / "shipped"
"""Folder of the shipped model, in an installed wheel as in a checkout."""
DEFAULT_MODEL: Final = "h200"
"""Taken when no model is named and ``runs/`` has none."""
_MARK = "published.json"


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package, sorted."""
    return sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{_MARK}"))


def shipped_run(name: str = DEFAULT_MODEL) -> Path | None:
    """Return the run of a model that comes with the package; None if there is none of that name."""
    return SHIPPED_FOLDER / name if name in shipped_models() else None

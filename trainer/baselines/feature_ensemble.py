"""Ensemble of networks and trees over the launch features, evaluated by numpy only.

Owns the combination of networks and trees. Some kernels do little on the chosen inputs (work-items
return at once, loops do not run). For such a kernel, one of the two models often predicts a time
that is ten times too long, but both seldom do. Therefore the prediction of the networks is moved
towards that of the trees where the trees predict a shorter time. The spread grows with the
difference of the two predictions.

An ensemble may contain another ensemble (``counted``) for launches whose work was counted. The two
ensembles share no weights, because the models for launches without counted work are fitted without
work features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from llmperf_common.features.features import is_counted, named_features
from llmperf_common.files.json_numbers import number
from trainer.baselines.feature_network import (
    MAX_ARRAYS_BYTES,
    FeatureNetwork,
    read_arrays,
)
from trainer.baselines.forest import Forest
from trainer.baselines.simple import (
    MODEL_FILE,
    MOST_NUMBER,
    model_features,
    read_model_json,
    write_model_json,
)
from trainer.interface import Floats, Predicted, Rows

NAME = "feature-ensemble"
NETWORK_FOLDER = "network"
FOREST_FILE = "forest.npz"
COUNTED_FOLDER = "counted"
_LEAST_SPREAD = 1e-3
"""Smallest spread in log2: no prediction is more accurate than 0.1 %."""


@dataclass(slots=True, kw_only=True)
class FeatureEnsemble:
    """Fitted networks and trees.

    Attributes:
        network: the networks.
        forest: the trees.
        forest_names: names of the trees' features.
        caution: how far the prediction moves to that of the trees where the trees predict a shorter
            time: 0 keeps the networks' prediction, 1 takes the shorter of the two.
        spread_scale: factor on the spread, measured on the validation part.
        chosen: settings of the fit, JSON values.
        counted: ensemble for launches whose work was counted, or None.
    """

    network: FeatureNetwork
    forest: Forest
    forest_names: tuple[str, ...]
    caution: float
    spread_scale: float
    chosen: Mapping[str, Any]
    counted: FeatureEnsemble | None = None
    name: str = NAME
    refits: bool = False

    def predict(self, rows: Rows) -> Predicted:
        """Return the combined prediction; its spread grows with the models' difference."""
        said = self._own(rows)
        known = np.flatnonzero(is_counted(rows.features)) if self.counted is not None else ()
        if self.counted is None or len(known) == 0:
            return said
        better = self.counted.predict(rows.take(np.asarray(known)))
        assert said.spread is not None, "an ensemble gives a spread"
        assert better.spread is not None, "an ensemble gives a spread"
        log2_ns, spread = said.log2_ns.copy(), said.spread.copy()
        log2_ns[known], spread[known] = better.log2_ns, better.spread
        return Predicted(log2_ns=log2_ns, spread=spread)

    def without_counted(self) -> FeatureEnsemble:
        """Return the ensemble for launches without counted work."""
        return replace(self, counted=None)

    def _own(self, rows: Rows) -> Predicted:
        networks = self.network.predict(rows)
        assert networks.spread is not None, "a feature network gives a spread"
        trees = self.forest.predict(named_features(rows.features, self.forest_names))
        apart = np.abs(networks.log2_ns - trees)
        spread = self.spread_scale * (networks.spread + apart)
        return Predicted(
            log2_ns=combined(networks.log2_ns, trees, self.caution),
            spread=np.maximum(spread, _LEAST_SPREAD),
        )

    def save(self, folder: Path) -> None:
        """Write ``model.json``, ``forest.npz``, ``network/`` and (for ``counted``) ``counted/``."""
        content = {
            "name": self.name,
            "caution": self.caution,
            "spread_scale": self.spread_scale,
            "forest_features": list(self.forest_names),
            "chosen": dict(self.chosen),
        }
        write_model_json(folder, content)
        arrays: dict[str, Any] = self.forest.arrays()
        np.savez_compressed(folder / FOREST_FILE, **arrays)
        (folder / NETWORK_FOLDER).mkdir()
        self.network.save(folder / NETWORK_FOLDER)
        if self.counted is not None:
            (folder / COUNTED_FOLDER).mkdir()
            self.counted.save(folder / COUNTED_FOLDER)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing or damaged, or all arrays together take more memory than
                ``MAX_ARRAYS_BYTES``.
        """
        own = cls._load_own(folder, max_bytes=MAX_ARRAYS_BYTES)
        counted = folder / COUNTED_FOLDER
        if counted.is_dir():
            left = MAX_ARRAYS_BYTES - own.forest.num_bytes - own.network.weights.num_bytes
            own.counted = cls._load_own(counted, max_bytes=left)
        return own

    @classmethod
    def _load_own(cls, folder: Path, *, max_bytes: int) -> Self:
        """Read an ensemble without ``counted``."""
        content = read_model_json(folder, NAME)
        names = model_features(content, "forest_features")
        forest = Forest.from_arrays(
            read_arrays(folder / FOREST_FILE, Forest.types(), max_bytes=max_bytes)
        )
        if len(forest.feature) and forest.feature.max() >= len(names):
            raise ValueError(
                f"{folder / FOREST_FILE}: a tree uses a feature beyond the model's {len(names)}"
            )
        return cls(
            network=FeatureNetwork.load(
                folder / NETWORK_FOLDER, max_bytes=max_bytes - forest.num_bytes
            ),
            forest=forest,
            forest_names=names,
            caution=number(content.get("caution"), f"{MODEL_FILE}: caution", least=0, most=1),
            spread_scale=number(
                content.get("spread_scale"),
                f"{MODEL_FILE}: spread_scale",
                least=0,
                most=MOST_NUMBER,
            ),
            chosen=dict(content["chosen"]),
        )


def combined(networks: Floats, trees: Floats, caution: float) -> Floats:
    """Return the networks' log2(ns), moved towards the trees' where that is smaller; shape (n,).

    >>> combined(np.array([14.0, 10.0]), np.array([10.0, 14.0]), 0.5).tolist()
    [12.0, 10.0]
    """
    return np.asarray(networks - caution * np.maximum(0.0, networks - trees))

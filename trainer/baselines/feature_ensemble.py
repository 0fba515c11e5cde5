"""Networks and trees over the launch features, and how their two answers become one: numpy only.

Owns the combination. Kernels that no model understands (their work-items leave at once, their loops make no turn
on the chosen inputs) are guessed ten times too long by one of the two and seldom by both: the networks answer, and
where the trees say less the answer moves towards theirs. How far the two are apart says how sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from llmperf_common.features import named_features
from trainer.baselines.feature_network import FeatureNetwork, read_arrays
from trainer.baselines.forest import Forest
from trainer.baselines.simple import read_model_json, write_model_json
from trainer.interface import Floats, Predicted, Rows

NAME = "feature-ensemble"
NETWORK_FOLDER = "network"
FOREST_FILE = "forest.npz"
_LEAST_SPREAD = 1e-3
"""Of log2: no launch is known to a thousandth."""


@dataclass(slots=True, kw_only=True)
class FeatureEnsemble:
    """Fitted networks and trees.

    Attributes:
        network: the networks, themselves a predictor.
        forest: the trees.
        forest_names: the features the trees were grown on.
        caution: how far the answer moves to the trees' where that is shorter: 0 takes the networks'
            answer always, 1 the shorter of the two.
        spread_scale: factor on the spread, measured on the validation part.
        chosen: how it was fitted, JSON values.
    """

    network: FeatureNetwork
    forest: Forest
    forest_names: tuple[str, ...]
    caution: float
    spread_scale: float
    chosen: Mapping[str, Any]
    name: str = NAME
    refits: bool = False

    def predict(self, rows: Rows) -> Predicted:
        """Return the combined answer; its spread grows with the distance of the two."""
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
        """Write ``model.json``, ``forest.npz`` and the networks' folder."""
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

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing or damaged.
        """
        content = read_model_json(folder, NAME)
        names = tuple(map(str, content["forest_features"]))
        forest = Forest.from_arrays(read_arrays(folder / FOREST_FILE, Forest, None))
        if len(forest.feature) and forest.feature.max() >= len(names):
            raise ValueError(
                f"{folder / FOREST_FILE}: its trees have more than {len(names)} features"
            )
        return cls(
            network=FeatureNetwork.load(folder / NETWORK_FOLDER),
            forest=forest,
            forest_names=names,
            caution=float(content["caution"]),
            spread_scale=float(content["spread_scale"]),
            chosen=dict(content["chosen"]),
        )


def combined(networks: Floats, trees: Floats, caution: float) -> Floats:
    """Return the networks' log2(ns), moved towards the trees' where these are shorter; shape (n,).

    >>> combined(np.array([14.0, 10.0]), np.array([10.0, 14.0]), 0.5).tolist()
    [12.0, 10.0]
    """
    return np.asarray(networks - caution * np.maximum(0.0, networks - trees))

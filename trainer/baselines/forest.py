"""LightGBM's trees as flat arrays, evaluated by numpy without LightGBM.

Owns the form of the arrays and the evaluation, which agrees with LightGBM's to 1e-9 (tested). Only
numerical splits are supported, because all launch features are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from trainer.interface import Floats

Integers = npt.NDArray[np.int32]

_CATEGORICAL_BIT = 1
_DEFAULT_LEFT_BIT = 2
_MISSING_SHIFT = 2
_MISSING_NONE, _MISSING_ZERO, _MISSING_NAN = 0, 1, 2
"""Bits of LightGBM's ``decision_type``. Bit 0: categorical; bit 1: missing values go left; bits 2
and 3: the values that count as missing (none, zero or NaN)."""

_PLACES_AT_ONCE = 2**20
"""Maximum of rows x trees evaluated together. Their node numbers take 8 MiB, which fit a cache."""
_MOST_LEAVES = 2**22
"""Maximum leaves of a forest: its arrays take 160 MiB."""
_MOST_DEPTH = 4096
"""Maximum depth of a tree. The config allows at most 4,096 leaves, so no tree is deeper."""
_MOST_STEPS = 2**21
"""Maximum sum of the trees' depths, which limits the time of a row to about 0.1 s. The largest
forest of a training with default settings has 25,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The sum of t trees with m inner nodes and l leaves in all.

    The nodes of all trees are numbered consecutively, and so are the leaves.

    Attributes:
        root: first node of each tree, or ``-1 - leaf`` for a tree of one leaf, shape (t,).
        feature: column that each node compares, shape (m,).
        threshold: the walk goes left if the value is at most this, shape (m,).
        left: next node, or ``-1 - leaf``, shape (m,).
        right: next node, or ``-1 - leaf``, shape (m,).
        missing_left: whether a missing value goes left, shape (m,).
        nan_is_missing: whether the node treats NaN as missing (else as 0), shape (m,).
        leaf: value of each leaf, shape (l,).
    """

    root: Integers
    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    missing_left: npt.NDArray[np.bool_]
    nan_is_missing: npt.NDArray[np.bool_]
    leaf: Floats

    def __post_init__(self) -> None:
        """Check that the arrays form a forest, so that every walk ends at a leaf.

        Raises:
            ValueError: Shapes differ, a link points out of the arrays or to an earlier node, two
                links point to one node, or a number is not finite.
        """
        num_nodes, num_leaves = len(self.feature), len(self.leaf)
        for one in fields(self):
            array = getattr(self, one.name)
            wanted = {"root": len(self.root), "leaf": num_leaves}.get(one.name, num_nodes)
            if array.shape != (wanted,):
                raise ValueError(
                    f"forest: array {one.name!r} has shape {array.shape}, not ({wanted},)"
                )
        own = np.arange(num_nodes)
        for links in (self.left, self.right):
            if np.any((links >= 0) & (links <= own)):
                raise ValueError("forest: a node links back to itself or to an earlier node")
        for links in (self.root, self.left, self.right):
            if len(links) and not (links.min() >= -num_leaves and links.max() < num_nodes):
                raise ValueError("forest: a link points out of the arrays")
        if num_nodes and self.feature.min() < 0:
            raise ValueError("forest: array 'feature' has a negative column number")
        if not (np.all(np.isfinite(self.leaf)) and not np.any(np.isnan(self.threshold))):
            raise ValueError("forest: a threshold or leaf is not a number")
        links = np.concatenate([self.root, self.left, self.right])
        for places, num in (
            (links[links >= 0], len(self.feature)),
            (-1 - links[links < 0], len(self.leaf)),
        ):
            if np.any(np.bincount(places, minlength=num) != 1):
                raise ValueError("forest: a node or leaf does not belong to exactly one tree")

    def _check_size(self) -> None:
        """Check that the evaluation of a row takes neither too long nor too much memory."""
        if len(self.leaf) > _MOST_LEAVES:
            raise ValueError(f"forest: it has more than {_MOST_LEAVES} leaves")
        steps, depth = 0, 0
        tree = np.flatnonzero(self.root >= 0)
        level = self.root[tree]
        while len(level):
            steps, depth = steps + len(np.unique(tree)), depth + 1
            if steps > _MOST_STEPS or depth > _MOST_DEPTH:
                raise ValueError(
                    f"forest: a tree is deeper than {_MOST_DEPTH}, or the depths of the trees add "
                    f"up to more than {_MOST_STEPS}"
                )
            level, tree = np.concatenate([self.left[level], self.right[level]]), np.tile(tree, 2)
            inner = level >= 0
            level, tree = level[inner], tree[inner]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read LightGBM's text format (``Booster.model_to_string()``).

        Raises:
            ValueError: The text is truncated, or a split is not numerical or treats 0 as missing.
        """
        if "end of trees" not in text:
            raise ValueError("LightGBM's model text is truncated: it has no 'end of trees'")
        parts: dict[str, list[npt.NDArray[np.float64]]] = {
            one: [] for one in ("feature", "threshold", "left", "right", "decision", "leaf")
        }
        roots, num_nodes, num_leaves = [], 0, 0
        for tree in _trees(text):
            leaf = _numbers(tree, "leaf_value")
            split = _numbers(tree, "split_feature")
            roots.append(num_nodes if len(split) else -1 - num_leaves)
            parts["leaf"].append(leaf)
            if len(split):
                parts["feature"].append(split)
                parts["threshold"].append(_numbers(tree, "threshold"))
                parts["decision"].append(_numbers(tree, "decision_type"))
                for side in ("left", "right"):
                    child = _numbers(tree, f"{side}_child")
                    parts[side].append(np.where(child >= 0, child + num_nodes, child - num_leaves))
            num_nodes, num_leaves = num_nodes + len(split), num_leaves + len(leaf)
        flat = {name: np.concatenate([np.zeros(0), *items]) for name, items in parts.items()}
        decision = flat["decision"].astype(np.int32)
        missing = decision >> _MISSING_SHIFT
        if np.any(decision & _CATEGORICAL_BIT) or np.any(missing == _MISSING_ZERO):
            raise ValueError(
                "LightGBM's model text has a split that is not numerical or treats 0 as missing"
            )
        return cls(
            root=np.array(roots, dtype=np.int32),
            feature=flat["feature"].astype(np.int32),
            threshold=flat["threshold"],
            left=flat["left"].astype(np.int32),
            right=flat["right"].astype(np.int32),
            missing_left=(decision & _DEFAULT_LEFT_BIT) > 0,
            nan_is_missing=missing == _MISSING_NAN,
            leaf=flat["leaf"],
        )

    def predict(self, features: Floats) -> Floats:
        """Return the sum of the trees for each row.

        Args:
            features: shape (n, f), the columns that the trees were grown on; NaN is unknown.

        Returns:
            Shape (n,).
        """
        total = np.zeros(len(features))
        step = max(1, _PLACES_AT_ONCE // max(1, len(self.root)))
        for first in range(0, len(features), step):
            rows = slice(first, first + step)
            total[rows] = self._walk(features[rows])
        return total

    def _walk(self, features: Floats) -> Floats:
        num_rows = len(features)
        node = np.tile(self.root, num_rows)
        row = np.repeat(np.arange(num_rows), len(self.root))
        open_ = np.flatnonzero(node >= 0)
        while len(open_):
            at = node[open_]
            value = features[row[open_], self.feature[at]]
            unknown = np.isnan(value)
            value = np.where(unknown, 0.0, value)
            goes_left = value <= self.threshold[at]
            goes_left = np.where(
                unknown & self.nan_is_missing[at], self.missing_left[at], goes_left
            )
            reached = np.where(goes_left, self.left[at], self.right[at])
            node[open_] = reached
            open_ = open_[reached >= 0]
        # Each row is summed alone: its sum must not depend on the number of rows in the call.
        return np.asarray(self.leaf[-1 - node].reshape(num_rows, len(self.root)).sum(axis=1))

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(one.nbytes for one in self.arrays().values())

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by name, for ``from_arrays``."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def types(cls) -> dict[str, type[np.generic]]:
        """Return the type of each array by its name."""
        kinds: dict[str, type[np.generic]] = {
            **dict.fromkeys(("threshold", "leaf"), np.float64),
            **dict.fromkeys(("missing_left", "nan_is_missing"), np.bool_),
        }
        return {one.name: kinds.get(one.name, np.int32) for one in fields(cls)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """Return a forest from the result of ``arrays``.

        Raises:
            ValueError: An array is missing or of the wrong shape, a link is wrong, or the forest is
                too large to be evaluated by numpy.
        """
        try:
            found: dict[str, Any] = {
                name: np.asarray(arrays[name], dtype=kind) for name, kind in cls.types().items()
            }
        except KeyError as error:
            raise ValueError(f"forest: array {error} is missing") from None
        forest = cls(**found)
        forest._check_size()
        return forest


def _trees(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each tree of LightGBM's text."""
    body = text[: text.index("end of trees")]
    for block in body.split("\nTree=")[1:]:
        lines = (line.partition("=") for line in block.splitlines()[1:])
        yield {name: value for name, equals, value in lines if equals}


def _numbers(tree: dict[str, str], name: str) -> npt.NDArray[np.float64]:
    return np.array(tree.get(name, "").split(), dtype=np.float64)

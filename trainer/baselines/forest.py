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

_ROWS_AT_ONCE = 2048
"""Rows evaluated together: 2,048 rows of 500 trees are 8 MB of node numbers, which fit a cache."""


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
            ValueError: Shapes differ, or a link points out of the arrays or to an earlier node.
        """
        num_nodes, num_leaves = len(self.feature), len(self.leaf)
        for one in fields(self):
            array = getattr(self, one.name)
            wanted = {"root": len(self.root), "leaf": num_leaves}.get(one.name, num_nodes)
            if array.shape != (wanted,):
                raise ValueError(f"forest: {one.name} has shape {array.shape}, not ({wanted},)")
        own = np.arange(num_nodes)
        for links in (self.left, self.right):
            if np.any((links >= 0) & (links <= own)):
                raise ValueError("forest: a node links back to itself or to an earlier node")
        for links in (self.root, self.left, self.right):
            if len(links) and not (links.min() >= -num_leaves and links.max() < num_nodes):
                raise ValueError("forest: a link points out of the arrays")
        if num_nodes and self.feature.min() < 0:
            raise ValueError("forest: a node compares a column whose number is negative")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read LightGBM's text format (``Booster.model_to_string()``).

        Raises:
            ValueError: The text is truncated, or a split is not numerical or treats 0 as missing.
        """
        if "end of trees" not in text:
            raise ValueError("the trees' text is cut short")
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
            raise ValueError("the trees have splits that are not numerical or treat 0 as missing")
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
        for first in range(0, len(features), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
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

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by name, for ``from_arrays``."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """Return a forest from the result of ``arrays``.

        Raises:
            ValueError: An array is missing or of the wrong shape, or a link is wrong.
        """
        kinds = {"threshold": np.float64, "leaf": np.float64}
        booleans = ("missing_left", "nan_is_missing")
        try:
            found: dict[str, Any] = {
                one.name: np.asarray(
                    arrays[one.name],
                    dtype=np.bool_ if one.name in booleans else kinds.get(one.name, np.int32),
                )
                for one in fields(cls)
            }
        except KeyError as error:
            raise ValueError(f"forest: array {error} is missing") from None
        return cls(**found)


def _trees(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each tree of LightGBM's text."""
    body = text[: text.index("end of trees")]
    for block in body.split("\nTree=")[1:]:
        lines = (line.partition("=") for line in block.splitlines()[1:])
        yield {name: value for name, equals, value in lines if equals}


def _numbers(tree: dict[str, str], name: str) -> npt.NDArray[np.float64]:
    return np.array(tree.get(name, "").split(), dtype=np.float64)

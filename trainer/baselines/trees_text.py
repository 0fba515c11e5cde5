"""Check of LightGBM's text format before LightGBM parses it, because bad text can crash LightGBM.

Owns the subset of the format that our models use: regression, one tree per round, numerical splits.
"""

from __future__ import annotations

import re
from itertools import pairwise

from trainer.baselines.forest import Forest

_HEAD = {
    "version": r"v\d+",
    "num_class": "1",
    "num_tree_per_iteration": "1",
    "label_index": r"\d{1,6}",
    "max_feature_idx": r"\d{1,6}",
    "objective": r"[\w :.,-]{1,100}",
    "feature_names": r"[^\n]*",
    "feature_infos": r"[^\n]*",
    "tree_sizes": r"[\d ]*",
}
_PER_LEAF = ("leaf_value", "leaf_weight", "leaf_count")
_PER_SPLIT = (
    "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
    "internal_value", "internal_weight", "internal_count",
)  # fmt: skip
_OF_TREE = {
    "num_leaves": r"\d{1,6}",
    "num_cat": "0",
    "is_linear": "0",
    "shrinkage": r"[-+.\de]{1,30}",
}
_NUMBERS = re.compile(r"[-+.\deEinfa ]*")


def check_trees(text: str, *, num_features: int) -> None:
    """Raise ValueError if a text is not in the form that LightGBM writes for our models.

    Args:
        text: a model in LightGBM's text format.
        num_features: number of the model's features.
    """
    if not text.isascii() or "\0" in text:
        raise ValueError("the trees' text is not plain ASCII")
    head, *blocks = _parts(text)
    _check_head(head, num_features, sizes=[len(block) for block in blocks])
    for number, block in enumerate(blocks):
        _check_tree(block, number)
    forest = Forest.from_text(text)  # checks the links and the kinds of splits
    if len(forest.feature) and forest.feature.max() >= num_features:
        raise ValueError(f"a tree uses a feature beyond the model's {num_features}")


def _parts(text: str) -> list[str]:
    """Return the head and the trees, each with the empty lines that follow it."""
    body, mark, _ = text.partition("end of trees")
    if not mark:
        raise ValueError("the trees' text is cut short")
    starts = [found.start() for found in re.finditer(r"^Tree=", body, re.MULTILINE)]
    edges = [0, *starts, len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]


def _check_head(head: str, num_features: int, sizes: list[int]) -> None:
    kind, *lines = head.strip("\n").split("\n")
    fields = _fields(lines)
    if kind != "tree" or fields.keys() != _HEAD.keys():
        raise ValueError("the head of the trees' text does not have the lines that LightGBM writes")
    for name, pattern in _HEAD.items():
        if re.fullmatch(pattern, fields[name]) is None:
            raise ValueError(
                f"{name} in the head of the trees' text has a value that LightGBM does not write"
            )
    names, facts = fields["feature_names"].split(" "), fields["feature_infos"].split(" ")
    if not int(fields["max_feature_idx"]) + 1 == num_features == len(names) == len(facts):
        raise ValueError(f"the trees' text does not have {num_features} features")
    if list(map(int, fields["tree_sizes"].split())) != sizes:
        raise ValueError("tree_sizes in the head of the trees' text do not match the trees")


def _check_tree(block: str, number: int) -> None:
    first, *lines = block.rstrip("\n").split("\n")
    fields = _fields(lines)
    known = {*_PER_LEAF, *_PER_SPLIT, *_OF_TREE}
    if first != f"Tree={number}" or not fields.keys() <= known:
        raise ValueError(f"tree {number} has unknown lines")
    for name, pattern in _OF_TREE.items():
        if re.fullmatch(pattern, fields.get(name, "")) is None:
            raise ValueError(f"{name} of tree {number} has a value that LightGBM does not write")
    num_leaves = int(fields["num_leaves"])
    wanted = {**dict.fromkeys(_PER_LEAF, num_leaves), **dict.fromkeys(_PER_SPLIT, num_leaves - 1)}
    for name, num_values in wanted.items():
        values = fields.get(name, "")
        if num_leaves == 1 and name not in ("leaf_value",) and not values:
            continue  # LightGBM writes only leaf_value for a tree that is one leaf
        if len(values.split()) != num_values or _NUMBERS.fullmatch(values) is None:
            raise ValueError(f"{name} of tree {number} must be {num_values} numbers")
    if num_leaves < 1:
        raise ValueError(f"tree {number} has no leaf")


def _fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if line and (not equals or name in fields):
            raise ValueError(
                f"unexpected line {line[:40]!r} in the trees' text: it has no =, or its field "
                "appears twice"
            )
        if line:
            fields[name] = value
    return fields

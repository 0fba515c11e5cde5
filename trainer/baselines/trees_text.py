"""Check of LightGBM's text format before LightGBM parses it, because bad text can crash LightGBM.

Owns the subset of the format that our models use: regression, one tree per round, numerical splits.
Lines and values are counted before they are split, because a list of them takes 30 times the
memory of the text.
"""

from __future__ import annotations

import re
from itertools import pairwise

from trainer.baselines.forest import Forest

MAX_BYTES = 64 * 2**20
"""Maximum size of the text in bytes: about 700,000 leaves. The largest model of the presets, 1,500
trees of 63 leaves, has 9 MB."""

_MOST_TREES = 100_000
"""Maximum number of trees, the largest ``gbdt.num_rounds``."""
_MOST_LINES = 100
"""Maximum number of lines of the head and of each tree; LightGBM writes up to 20."""
_MOST_LINES_AFTER = 1_000
"""Maximum number of lines after the trees, not counting one line for each feature. LightGBM writes
140."""
_NUMBER_CHARACTERS = 32
"""Maximum length of a number with the blank after it; LightGBM writes up to 25 characters."""

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

    The check needs about eight times as much memory as the text.

    Args:
        text: a model in LightGBM's text format.
        num_features: number of the model's features.
    """
    if not text.isascii() or "\0" in text:
        raise ValueError("the trees' text is not plain ASCII")
    if text.count("\nTree=") > _MOST_TREES:
        raise ValueError(f"the trees' text has more than {_MOST_TREES:,} trees")
    head, *blocks = _parts(text, most_lines_after=num_features + _MOST_LINES_AFTER)
    _check_head(head, num_features, sizes=[len(block) for block in blocks])
    for number, block in enumerate(blocks):
        _check_tree(block, number)
    forest = Forest.from_text(text)  # checks the links and the kinds of splits
    if len(forest.feature) and forest.feature.max() >= num_features:
        raise ValueError(f"a tree uses a feature beyond the model's {num_features}")


def _parts(text: str, *, most_lines_after: int) -> list[str]:
    """Return the head and the trees, each with the empty lines that follow it."""
    body, mark, after = text.partition("end of trees")
    if not mark:
        raise ValueError("the trees' text is cut short")
    if after.count("\n") > most_lines_after:
        # LightGBM prints a warning for each parameter that it does not know.
        raise ValueError(
            f"the trees' text has more than {most_lines_after:,} lines after the trees"
        )
    starts = [found.start() for found in re.finditer(r"^Tree=", body, re.MULTILINE)]
    edges = [0, *starts, len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]


def _check_head(head: str, num_features: int, sizes: list[int]) -> None:
    kind, fields = _fields(head.strip("\n"))
    if kind != "tree" or fields.keys() != _HEAD.keys():
        raise ValueError("the head of the trees' text does not have the lines that LightGBM writes")
    for name, pattern in _HEAD.items():
        if re.fullmatch(pattern, fields[name]) is None:
            raise ValueError(
                f"{name} in the head of the trees' text has a value that LightGBM does not write"
            )
    names, facts = (1 + fields[name].count(" ") for name in ("feature_names", "feature_infos"))
    if not int(fields["max_feature_idx"]) + 1 == num_features == names == facts:
        raise ValueError(f"the trees' text does not have {num_features} features")
    if fields["tree_sizes"] != " ".join(map(str, sizes)):
        raise ValueError("tree_sizes in the head of the trees' text do not match the trees")


def _check_tree(block: str, number: int) -> None:
    first, fields = _fields(block.rstrip("\n"))
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
        if not _is_numbers(values, num_values):
            raise ValueError(f"{name} of tree {number} must be {num_values} numbers")
    if num_leaves < 1:
        raise ValueError(f"tree {number} has no leaf")


def _is_numbers(values: str, num_values: int) -> bool:
    return (
        values.count(" ") == num_values - 1
        and len(values) <= num_values * _NUMBER_CHARACTERS
        and _NUMBERS.fullmatch(values) is not None
        and len(values.split()) == num_values
    )


def _fields(part: str) -> tuple[str, dict[str, str]]:
    """Return the first line of the head or of a tree, and the values of its fields by name."""
    if part.count("\n") > _MOST_LINES:
        raise ValueError(
            f"the head or a tree has more than {_MOST_LINES} lines in the trees' text, which "
            "LightGBM does not write"
        )
    first, *lines = part.split("\n")
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
    return first, fields

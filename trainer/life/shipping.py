"""A finished run made small enough to come with the package: what ``predict`` and ``evaluate`` need, no more.

Owns what is left out: predictions and baselines, and of the fitted kernels everything but their ids, because
names of arguments and memory analyses follow third-party sources.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from trainer.errors import BadInput
from trainer.life.publishing import mark_published
from trainer.run.folder import (
    CARD_FILE,
    CONFIG_FILE,
    CONFORMAL_FILE,
    DEVICE_FILE,
    KERNELS_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    PACKED_RANGE_FILE,
    PUBLISHED_FILE,
    RANGE_FILE,
    SPLIT_FILE,
    new_folder,
    read_json,
    write_json,
)

SHIPPED_KERNEL_COLUMNS: Final = (
    "kernel_id",
    "family_id",
    "suite",
    "device_class",
    "source_sha256",
)
"""Of the kernels that were fitted: enough to tell which kernels and families a dataset shares with them."""
_RANGE_DIGITS = 3
"""Decimals of a fitted kernel's standardised features, which are compared with distances of about 1."""
_KEPT_NODES = ("model", "split", "judge")
"""Of the config tree: what reading the run uses. The rest is kept beside it as a record: a later release that
renames a key of fitting must still read the model."""
_COMPACT = (SPLIT_FILE, CONFORMAL_FILE, DEVICE_FILE, METRICS_FILE)
"""Written again without blanks; their values stay."""


def ship(run: Path, out: Path, card: str) -> int:
    """Write the small form of a published run to ``out``, whole or not at all.

    Args:
        run: a published run.
        out: a folder; one that is there is replaced.
        card: the text of its model card.

    Returns:
        Its bytes.

    Raises:
        BadInput: ``run`` is not published, or a file cannot be read.
    """
    facts = read_json(run / PUBLISHED_FILE)
    try:
        kernels = pq.read_table(run / KERNELS_FILE, columns=list(SHIPPED_KERNEL_COLUMNS))
    except (OSError, ValueError) as error:
        raise BadInput(f"{run}: not a readable run: {error}") from None
    with new_folder(out) as folder:
        for name in _COMPACT:
            (folder / name).write_bytes(_compact(read_json(run / name)))
        write_json(folder / CONFIG_FILE, _config(read_json(run / CONFIG_FILE)))
        shutil.copytree(run / MODEL_FOLDER, folder / MODEL_FOLDER)
        pq.write_table(kernels, folder / KERNELS_FILE, compression="zstd")
        ranges = _compact(_rounded(read_json(run / RANGE_FILE)))
        # Without a time in its header, the same content is the same file.
        (folder / PACKED_RANGE_FILE).write_bytes(gzip.compress(ranges, mtime=0))
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        kept = {name: value for name, value in facts.items() if name not in {"schema", "files"}}
        mark_published(folder, kept, keep_fit=False)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json`` with the nodes of the tree that are read again."""
    tree = content["config"]
    return {
        **content,
        "config": {name: tree[name] for name in _KEPT_NODES if name in tree},
        "made_with": tree,
    }


def _rounded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training range with fewer decimals; kernels that are then equal count once."""
    static = content["static"]
    kernels = {tuple(round(value, _RANGE_DIGITS) for value in row) for row in static["kernels"]}
    return {**content, "static": {**static, "kernels": [list(row) for row in sorted(kernels)]}}


def _compact(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, separators=(',', ':'), allow_nan=False)}\n".encode()

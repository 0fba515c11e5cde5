"""The small form of a finished run that comes with the package, for ``predict`` and ``evaluate``.

Owns the choice of what is left out: predictions, baselines, and all facts of the fitted kernels but
their ids, because argument names and memory analyses derive from third-party sources.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from llmperf_common.files.parquet_files import write_parquet
from trainer.errors import BadInput
from trainer.life.publishing import mark_published
from trainer.run.folder import (
    CARD_FILE,
    CONFIG_FILE,
    CONFORMAL_FILE,
    DEVICE_FILE,
    FEW_SHOT_FILE,
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
"""Columns of the fitted kernels that tell which kernels and families a dataset shares with them."""
_RANGE_DIGITS = 3
"""Decimals of a fitted kernel's standardised features. Distances between kernels are about 1."""
_KEPT_NODES = ("model", "split", "judge")
"""Nodes of the config that loading a run uses. All nodes are kept under ``made_with`` as a record,
so that a later release that renames a key of the fit can still load the model."""
_COMPACT = (SPLIT_FILE, CONFORMAL_FILE, DEVICE_FILE, METRICS_FILE)
"""Files that are written again without blanks, with the same values."""


def ship(run: Path, out: Path, card: str) -> int:
    """Write the small form of a published run to ``out``, atomically.

    Args:
        run: a published run.
        out: a folder; an existing one is replaced.
        card: text of the model card.

    Returns:
        The size of ``out`` in bytes.

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
        if (run / FEW_SHOT_FILE).exists():
            write_json(folder / FEW_SHOT_FILE, read_json(run / FEW_SHOT_FILE))
        write_json(folder / CONFIG_FILE, _config(read_json(run / CONFIG_FILE)))
        shutil.copytree(run / MODEL_FOLDER, folder / MODEL_FOLDER)
        write_parquet(kernels, folder / KERNELS_FILE, compression="zstd")
        ranges = _compact(_rounded(read_json(run / RANGE_FILE)))
        # Without a time in the gzip header, equal contents give equal files.
        (folder / PACKED_RANGE_FILE).write_bytes(gzip.compress(ranges, mtime=0))
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        kept = {name: value for name, value in facts.items() if name not in {"schema", "files"}}
        mark_published(folder, kept, keep_fit=False)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json`` with only the nodes that loading uses."""
    tree = content["config"]
    return {
        **content,
        "config": {name: tree[name] for name in _KEPT_NODES if name in tree},
        "made_with": tree,
    }


def _rounded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training range with fewer decimals and without kernels that are then duplicates."""
    static = content["static"]
    kernels = {tuple(round(value, _RANGE_DIGITS) for value in row) for row in static["kernels"]}
    return {**content, "static": {**static, "kernels": [list(row) for row in sorted(kernels)]}}


def _compact(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, separators=(',', ':'), allow_nan=False)}\n".encode()

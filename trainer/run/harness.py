"""Whether the rows of a dataset were measured as the rows that a run was trained on.

Owns the note for the case that they were not. It is a note and no error: the times of two harness
versions are close, and often only rows of the newer version exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HARNESS_KEY = "harness_version"
"""Key of the version in ``TrainingData.identity``, and under ``dataset`` in ``config.json``."""


def harness_notes(trained: int | None, dataset: Mapping[str, Any]) -> list[str]:
    """Return a note if the harness versions of a run and a dataset are known and differ.

    Args:
        trained: harness version of the run's fit rows; None if the run does not record it.
        dataset: ``TrainingData.identity`` of the other dataset.

    >>> harness_notes(1, {"harness_version": 1})
    []
    """
    found = dataset.get(HARNESS_KEY)
    if trained is None or found is None or trained == found:
        return []
    return [
        f"times: the model was trained on harness version {trained}, these rows were measured with "
        f"version {found}: a part of the differences may come from it"
    ]


def recorded_version(config: Mapping[str, Any]) -> int | None:
    """Return the harness version in a run's ``config.json``; None if it records none.

    >>> recorded_version({"dataset": {"harness_version": 2}})
    2
    >>> recorded_version({"dataset": []}) is None
    True
    """
    dataset = config.get("dataset")
    found = dataset.get(HARNESS_KEY) if isinstance(dataset, Mapping) else None
    return found if type(found) is int else None

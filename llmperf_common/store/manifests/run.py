"""``run.json``: what is collected into a dataset folder; created once and never changed.

Owns the fields of ``run.json`` and this rule: a command with the same plan hash attaches and
resumes, a command with another plan hash is refused.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmperf_common.errors import Exit
from llmperf_common.files.foreign_json import parse_json, whole_number
from llmperf_common.ids import HARNESS_VERSION
from llmperf_common.records import DeviceClass
from llmperf_common.schemas import SCHEMA_VERSION
from llmperf_common.store.files.filesystem import Filesystem, StoreError, StoreLostError

RUN_FILE = "run.json"
_MAX_RUN_VALUES = 1_000_000
_MAX_NUMBER = 2**63
_RUN_ID = re.compile(r"[\w.:+-]{0,200}", re.ASCII)
"""A run id becomes the name of a folder, so only these characters are allowed."""

RUN_LOCK = ".run.lock"
"""Collectors share this lock while they run; sweep and compaction hold it exclusively."""


class ForeignRunError(StoreError):
    """The folder belongs to another run; exit code 2."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that decides what a run plans, and the config with which it was first started.

    ``run_id`` distinguishes runs of the same plan; it is empty in old datasets. ``merged_from`` has
    the plan hashes of a merged dataset's sources; it is empty in other datasets.
    """

    plan_hash: str
    corpus_sha256: str
    config_hash: str
    config: Mapping[str, Any]
    device_classes: tuple[DeviceClass, ...]
    num_tasks: int
    created_at: str
    run_id: str = ""
    harness_version: int = HARNESS_VERSION
    schema_version: int = SCHEMA_VERSION
    merged_from: tuple[str, ...] = ()

    @property
    def plan_hashes(self) -> tuple[str, ...]:
        """Plan hashes of the dataset's tasks: that of this run, or those of a merge's sources."""
        return self.merged_from or (self.plan_hash,)

    def to_json(self) -> bytes:
        """Return the bytes of ``run.json``."""
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_run(fs: Filesystem) -> RunRecord | None:
    """Return the run of a folder; None without ``run.json``. Raises StoreError if it is damaged."""
    try:
        data = fs.read_bytes(RUN_FILE)
    except FileNotFoundError:
        return None
    try:
        document = parse_json(data, max_values=_MAX_RUN_VALUES)
        if (
            whole_number(document["schema_version"]) > SCHEMA_VERSION
        ):  # other fields may be unknown to this version
            raise StoreError(
                f"{fs.describe(RUN_FILE)} has schema version {document['schema_version']}, but "
                f"this LLMPerf reads versions up to {SCHEMA_VERSION}: upgrade LLMPerf"
            )
        classes = tuple(
            DeviceClass(**{**item, "max_work_item_sizes": tuple(item["max_work_item_sizes"])})
            for item in document.pop("device_classes")
        )
        merged_from = tuple(document.pop("merged_from", ()))
        run = RunRecord(device_classes=classes, merged_from=merged_from, **document)
        _check_types(run)
        return run
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise StoreError(
            f"{fs.describe(RUN_FILE)} is damaged ({type(error).__name__}: {error}): restore it "
            "from a backup or choose a new folder"
        ) from None


def _check_types(run: RunRecord) -> None:
    """Raise TypeError or ValueError for a field that LLMPerf would not write."""
    texts = (run.plan_hash, run.corpus_sha256, run.config_hash, run.created_at, run.run_id)
    names = tuple(one.name for one in run.device_classes)
    if not all(isinstance(one, str) for one in (*texts, *names, *run.merged_from)):
        raise TypeError("a hash, a name or a time is not a text")
    if _RUN_ID.fullmatch(run.run_id) is None:
        raise ValueError("its run_id is not an id")
    if not isinstance(run.config, Mapping):
        raise TypeError("its config is not a table")
    numbers = [run.num_tasks, run.harness_version, run.schema_version]
    for one in run.device_classes:
        facts = {**dataclasses.asdict(one), "name": 0}
        sizes = facts.pop("max_work_item_sizes")
        numbers += [value for value in (*facts.values(), *sizes) if value is not None]
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers):
        raise ValueError("one of its numbers is not a valid whole number")


def create_or_join_run(fs: Filesystem, run: RunRecord) -> RunRecord:
    """Create ``run.json``, or join the existing run if it has the same plan.

    Raises:
        ForeignRunError: Another plan is being collected in this folder.
        StoreError: The folder holds files that do not belong to a dataset.
    """
    found = read_run(fs)
    if found is None:
        _check_empty(fs)
        if fs.put_if_absent(RUN_FILE, run.to_json()):
            return run
        found = read_run(fs)
        if found is None:
            raise StoreLostError(
                f"{fs.describe(RUN_FILE)} was removed a moment after it was created: LLMPerf never "
                "does that; find out what else writes there and run the same command again"
            )
    if found.plan_hash != run.plan_hash:
        raise ForeignRunError(
            f"{fs.describe()} belongs to another run ({_difference(found, run)}): "
            "choose another --out, or repeat the command that started that run"
        )
    return found


def _check_empty(fs: Filesystem) -> None:
    names = fs.names()
    foreign = [name for name in names if not name.startswith(".")]
    if (
        foreign and RUN_FILE not in names
    ):  # RUN_FILE is checked again, because another collector may have created it just now
        raise ForeignRunError(
            f"{fs.describe()} has no run.json, but it has other files ({', '.join(foreign[:3])}): "
            "choose an empty or new folder for --out"
        )


def _difference(found: RunRecord, wanted: RunRecord) -> str:
    """Return the first difference that is found; the likeliest difference is checked first."""
    if found.corpus_sha256 != wanted.corpus_sha256:
        return "its corpus differs"
    if found.device_classes != wanted.device_classes:
        names = ", ".join(item.name for item in found.device_classes)
        return f"it was made for device class {names}"
    if found.harness_version != wanted.harness_version:
        return (
            f"its times have version {found.harness_version} of the measuring code "
            f"(harness_version), but this LLMPerf has version {wanted.harness_version}: one "
            "dataset cannot mix versions, but this dataset stays readable"
        )
    changed = []
    for section in ("plan", "timing"):
        there, here = found.config.get(section, {}), wanted.config.get(section, {})
        changed += [
            f"{section}.{key}: {there.get(key)} there, {here.get(key)} here"
            for key in {**there, **here}
            if json.dumps(there.get(key)) != json.dumps(here.get(key))
        ]
    return "; ".join(changed[:5]) or "its plan differs"

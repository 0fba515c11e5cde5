"""What each part of the comparison times: kernels with launch configs from LLMPerf's dataset.

Owns the records and their JSON. Imports no pydantic and no Arrow, because a fresh process reads the
records for each launch config, and its time includes its imports.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    LaunchArgument,
    LaunchConfig,
    Leaf,
    SizeRole,
)

GUARD_BYTES = 4096
"""Bytes of padding after every buffer, as in LLMPerf (``workers/device/opencl/limits.py``): some
kernels access memory shortly after a buffer's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A kernel with the launch configs to time, in the order of LLMPerf's plan."""

    kernel_id: str
    name: str
    source: str
    build_options: str
    arguments: tuple[Argument, ...]
    launches: tuple[LaunchConfig, ...]

    @property
    def needs_refill(self) -> bool:
        """Whether the kernel reads a global or constant buffer that it also writes."""
        return any(
            one.access is Access.READ_WRITE
            and one.kind in (ArgumentKind.GLOBAL_BUFFER, ArgumentKind.CONSTANT_BUFFER)
            for one in self.arguments
        )

    def only(self, launch: LaunchConfig) -> Job:
        """Return the job with this one launch config."""
        return dataclasses.replace(self, launches=(launch,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The input of a part.

    ``device_ref`` has the fields of a ``DeviceRef``, ``timing`` the fields of the ``TimingConfig``
    of LLMPerf's run. ``timer_step_ns`` and ``last_level_cache_bytes`` come from the row of the
    device in LLMPerf's dataset.
    """

    device_ref: Mapping[str, Any]
    timing: Mapping[str, Any]
    timer_step_ns: float | None
    last_level_cache_bytes: int
    jobs: tuple[Job, ...]


def write_work(path: Path, work: Work) -> None:
    """Write the work of a part as JSON."""
    path.write_text(work_to_json(work), encoding="utf-8")


def read_work(path: Path) -> Work:
    """Read what ``write_work`` wrote."""
    return work_from_json(path.read_text(encoding="utf-8"))


def work_to_json(work: Work) -> str:
    """Return the work as one JSON document."""
    return json.dumps(dataclasses.asdict(work))


def work_from_json(text: str) -> Work:
    """Return the work that ``work_to_json`` wrote."""
    document = json.loads(text)
    return Work(**{**document, "jobs": tuple(map(_job, document["jobs"]))})


def allocated_bytes(argument: Argument, given: LaunchArgument) -> int:
    """Return a buffer's size with padding; constant memory is scarce and gets no padding."""
    num_bytes = (given.elements or 0) * argument.element_bytes
    if argument.kind is ArgumentKind.CONSTANT_BUFFER:
        return max(4, num_bytes)
    return num_bytes + GUARD_BYTES


def launch_from_row(row: Mapping[str, Any]) -> LaunchConfig:
    """Return the launch config of a ``samples`` row; regime and strategies are left out."""
    return _launch({**row, "args": [_flat_argument(one) for one in row["args"]]})


def without(jobs: Iterable[Job], kernel_ids: frozenset[str]) -> tuple[Job, ...]:
    """Return the jobs without those of ``kernel_ids``."""
    return tuple(job for job in jobs if job.kernel_id not in kernel_ids)


def _flat_argument(row: Mapping[str, Any]) -> dict[str, Any]:
    rule = row["contents"]
    contents = None if rule is None else {"rule": rule, "limit": row["contents_limit"]}
    return {
        "position": row["position"],
        "kind": row["kind"],
        "elements": row["elements"],
        "value": row["value"],
        "contents": contents,
    }


def _launch(document: Mapping[str, Any]) -> LaunchConfig:
    return LaunchConfig(
        sample_id=document["sample_id"],
        global_size=tuple(document["global_size"]),
        local_size=tuple(document["local_size"]),
        args=tuple(map(_launch_argument, document["args"])),
        regime=None,
        strategies=(),
        seed=document["seed"],
    )


def _launch_argument(document: Mapping[str, Any]) -> LaunchArgument:
    rule = document["contents"]
    contents = (
        None if rule is None else Contents(rule=ContentsRule(rule["rule"]), limit=rule["limit"])
    )
    return LaunchArgument(
        position=document["position"],
        kind=ArgumentKind(document["kind"]),
        elements=document["elements"],
        value=document["value"],
        contents=contents,
    )


def _argument(document: Mapping[str, Any]) -> Argument:
    return Argument(
        **{
            **document,
            "kind": ArgumentKind(document["kind"]),
            "access": Access(document["access"]),
            "size_role": SizeRole(document["size_role"]),
            "leaves": tuple(Leaf(**leaf) for leaf in document["leaves"]),
        }
    )


def _job(document: Mapping[str, Any]) -> Job:
    return Job(
        kernel_id=document["kernel_id"],
        name=document["name"],
        source=document["source"],
        build_options=document["build_options"],
        arguments=tuple(map(_argument, document["arguments"])),
        launches=tuple(map(_launch, document["launches"])),
    )

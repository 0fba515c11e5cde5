"""Read launch configs back from rows of ``samples``, to count or trace a stored launch again.

The columns are those that ``rows.py`` writes for a config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import ArgumentKind, LaunchArgument, LaunchConfig, Strategy

LAUNCH_COLUMNS = ("global_size", "local_size", "args", "seed")
"""The columns of ``samples`` that ``launch_from_row`` reads. It also reads ``sample_id``, if
given."""


def launch_from_row(row: Mapping[str, Any]) -> LaunchConfig:
    """Return the launch config of a row of ``samples``.

    The regime and the strategies that chose the config are not restored, because they say nothing
    about what a launch executes.

    Raises:
        TypeError: A size, or the arguments, are null.
        ValueError: The row has an unknown kind of argument or contents, so LLMPerf did not write
            it.
    """
    return LaunchConfig(
        sample_id=row.get("sample_id") or "",
        global_size=tuple(row["global_size"]),
        local_size=tuple(row["local_size"]),
        args=tuple(_argument(one) for one in row["args"]),
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=row["seed"] or 0,
    )


def _argument(one: Mapping[str, Any]) -> LaunchArgument:
    contents = None
    if one.get("contents"):
        contents = Contents(rule=ContentsRule(one["contents"]), limit=one["contents_limit"] or 0)
    value = one["value"]
    is_whole = value is not None and float(value).is_integer()
    return LaunchArgument(
        position=one["position"],
        kind=ArgumentKind(one["kind"]),
        elements=one["elements"],
        value=int(value) if is_whole else value,
        contents=contents,
    )

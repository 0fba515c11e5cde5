"""``python -m llmperf.reference FOLDER``: write the reference pages from the code.

Owns the form of ``docs/reference/*.md``, but no facts: options come from the command tree, columns
from the Arrow schemas, failure codes and config keys from the code that defines them. A test fails
when a page is outdated. This module contains only sentences that no other code has as data, such as
the meaning of a retry rule.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.telemetry.metrics import METRICS, TAGS
from llmperf.exits import CommandError, Exit
from llmperf.reference.api import api_page
from llmperf.reference.commands import cli_page
from llmperf.reference.config import config_page, example, example_of_cluster
from llmperf.reference.markdown import listed, page, table
from llmperf.reference.schema import schema_page
from llmperf_common.failures import FAILURE_MEANINGS, RETRY_RULES, FailureCode, Retry
from trainer.config import TrainConfig
from workers.collect.events import EVENT_KINDS, ON_EVERY_LINE
from workers.config import CollectConfig

RETRY_MEANINGS: dict[Retry, str] = {
    Retry.NEVER: "No retry: the same input fails again.",
    Retry.ONCE_IN_FRESH_CHILD: "One more try in a new child process, before the row is committed.",
    Retry.ANOTHER_WORKER: "The lease expires and another worker takes the task.",
}


def render() -> dict[str, str]:
    """Return the text of every page by file name; the text is the same on every machine.

    >>> sorted(render())[:5]
    ['api.md', 'cli.md', 'collect-example.toml', 'config.md', 'events.md']
    """
    return {
        "api.md": page("Python API", api_page()),
        "cli.md": page("Command line", cli_page()),
        "collect-example.toml": example("collect", CollectConfig, example_of_cluster()),
        "config.md": page("Configuration", config_page()),
        "events.md": page("Event log", _events()),
        "failure-codes.md": page("Failure codes", _failures()),
        "metrics.md": page("Metrics", _metrics()),
        "schema.md": page("Dataset schema", schema_page()),
        "train-example.toml": example("train", TrainConfig),
    }


def main(arguments: Sequence[str]) -> None:
    """Write the pages into the folder given as the only argument.

    Raises:
        CommandError: The number of arguments is not one.
    """
    if len(arguments) != 1:
        raise CommandError(Exit.USAGE, "usage: python -m llmperf.reference FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stderr.write(f"{folder / name} written\n")


def _failures() -> Iterator[str]:
    yield "A failure is a row: `samples.status` holds its code, `samples.failure_detail` the"
    yield "evidence (its beginning and end, at most 8 KB). Retries happen before a row is"
    yield "committed; a committed row is final."
    yield ""
    yield from table(
        ("code", "meaning", "retry rule"),
        (
            (f"`{code}`", FAILURE_MEANINGS[code], RETRY_MEANINGS[RETRY_RULES[code]])
            for code in FailureCode
        ),
    )


def _events() -> Iterator[str]:
    yield "`DIR/events/` (for a dataset in S3: `events/` in the state folder of each host) has one"
    yield "file of JSON lines per collecting process. The log explains how results came about; the"
    yield "dataset never depends on it. It includes the warnings that a process logs."
    yield ""
    yield from table(
        ("on every line", "meaning"), ((f"`{name}`", text) for name, text in ON_EVERY_LINE)
    )
    yield ""
    yield from table(
        ("`event`", "fields", "meaning"),
        ((f"`{kind}`", fields, text) for kind, (fields, text) in EVENT_KINDS.items()),
    )


def _metrics() -> Iterator[str]:
    yield "With `--cluster`, the metrics agent of each Ray node exports these metrics: Prometheus"
    yield "scrapes `MetricsExportPort` of each node (`ray start --metrics-export-port`). Ray adds"
    yield "the prefix `ray_` to each name and the suffix `_total` to counters:"
    yield "`ray_llmperf_samples_total`. Workers send values every 2 s, Ray exports them every 10 s."
    yield "The agent requires no password. It listens on its node's network; if the command starts"
    yield "Ray itself, it listens on loopback only."
    yield ""
    yield f"Every metric has the tags {listed(TAGS)}. Ray adds its own tags."
    yield ""
    yield from table(
        ("name", "kind", "own tags", "meaning"),
        (
            (f"`{one.name}`", one.kind.value, ", ".join(one.tags) or "-", one.meaning)
            for one in METRICS
        ),
    )

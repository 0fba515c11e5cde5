"""``python -m llmperf.reference FOLDER``: the reference pages, written from the code they describe.

Owns the form of ``docs/reference/*.md``. Owns no fact: options come from the command tree, columns from the
Arrow schemas, codes and keys from their tables, so a page that is stale fails a test. The only sentences kept
here are those that the code has as comments (what an exit code or a retry rule means).
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
    Retry.ANOTHER_WORKER: "The lease runs out and another worker takes the task.",
}


def render() -> dict[str, str]:
    """Return the text of every page by file name; equal on every machine.

    >>> sorted(render())
    ['api.md', 'cli.md', 'collect-example.toml', 'config.md', 'events.md', 'failure-codes.md', 'metrics.md', 'schema.md', 'train-example.toml']
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
    """Write the pages into the folder that is the only argument.

    Raises:
        CommandError: There is not exactly one argument.
    """
    if len(arguments) != 1:
        raise CommandError(Exit.USAGE, "usage: python -m llmperf.reference FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stderr.write(f"{folder / name} written\n")


def _failures() -> Iterator[str]:
    yield "A failure is a row: `samples.status` holds its code, `samples.failure_detail` the evidence (at most"
    yield "8 KB, head and tail kept). Retries happen before a row is committed; a committed row is final."
    yield ""
    yield from table(
        ("code", "meaning", "retry rule"),
        (
            (f"`{code}`", FAILURE_MEANINGS[code], RETRY_MEANINGS[RETRY_RULES[code]])
            for code in FailureCode
        ),
    )


def _events() -> Iterator[str]:
    yield "`DIR/events/` (for a dataset in S3: `events/` in the state folder of each host) has a file of JSON lines for each process that"
    yield "has collected. It is for people and tools that ask why; the dataset never depends on it. Warnings that a process logs are among its lines, so one `grep` finds them."
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
    yield "With `--cluster`, through the metrics agent of each Ray node: Prometheus scrapes `MetricsExportPort` of each node"
    yield "(`ray start --metrics-export-port`). Ray puts `ray_` before each name and `_total` after those of counters:"
    yield "`ray_llmperf_samples_total`. Values come every 2 s from a worker, every 10 s from Ray."
    yield "The agent asks for no password: it listens on the network of its node; on loopback alone where the command starts Ray itself."
    yield ""
    yield f"Tags of all: {listed(TAGS)} (Ray adds its own)."
    yield ""
    yield from table(
        ("name", "kind", "own tags", "meaning"),
        (
            (f"`{one.name}`", one.kind.value, ", ".join(one.tags) or "-", one.meaning)
            for one in METRICS
        ),
    )

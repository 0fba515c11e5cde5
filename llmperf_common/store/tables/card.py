"""The dataset's card: ``README.md`` for people and Hugging Face, and ``croissant.json`` beside it.

Owns the text, the rule that decides whether a card may be replaced, and the YAML with which
``datasets.load_dataset(DIR, "samples")`` works. This YAML names the manifest's files one by one.
A test runs the card's code blocks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa

from llmperf_common.failures import FAILURE_MEANINGS, OK_STATUS, FailureCode
from llmperf_common.features.activity import Activity
from llmperf_common.files.visible import in_code, in_markdown, visible, visible_json
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.tables.croissant import CROISSANT_FILE, croissant_json
from llmperf_common.store.tables.reader import Dataset, open_dataset
from llmperf_common.store.tables.stats import DatasetStats, dataset_stats

CARD_FILE = "README.md"
_MARKER = (
    "<!-- Written by llmperf, and again after each run. "
    "Remove this line to keep a text of your own. -->"
)
_TAG = "- LLMPerf"
"""A tag in every card that was written with the marker. If a card has this tag but no marker, the
user has removed the marker to keep a text of their own. A card with neither was written by an older
release."""
_log = logging.getLogger(__name__)
_DESCRIPTION = (
    "Timed launches of OpenCL kernels: for each launch config (NDRange and every argument) the "
    "readings of its run time, or the failure that it met, with the kernel's source and the device "
    "it ran on."
)
_SIZE_CATEGORIES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
)


def write_card(
    fs: Filesystem,
    dataset: Dataset,
    *,
    pretty_name: str = "LLMPerf kernel timings",
    license_name: str | None = None,
) -> tuple[str, ...]:
    """Write ``README.md`` and ``croissant.json`` of the dataset's current version.

    A file with one of these names that LLMPerf did not write stays as it is.

    Args:
        fs: the dataset's folder.
        dataset: the dataset to describe.
        pretty_name: the card's title.
        license_name: Hugging Face's identifier of the licence; None states no licence, because
            LLMPerf does not know the licence of the kernels.

    Returns:
        The names of the files that stayed as they were.

    Raises:
        ShardError: A shard is missing or damaged.
        StoreError: The folder cannot be written.
    """
    text = card_text(dataset, pretty_name=pretty_name, license_name=license_name)
    document = croissant_json(
        dataset, name=pretty_name, description=_DESCRIPTION, license_name=license_name
    )
    left = []
    for name, data in ((CARD_FILE, text.encode()), (CROISSANT_FILE, document)):
        if _may_replace(fs, name):
            fs.replace(name, data)
        else:
            left.append(name)
    return tuple(left)


def update_card(fs: Filesystem) -> None:
    """Write the card of the dataset in ``fs`` after a change; warn about files that the user wrote.

    Raises:
        ShardError: A shard is missing or damaged.
        StoreError: The folder cannot be written.
    """
    for name in write_card(fs, open_dataset(fs)):
        _log.warning("%s was not written by llmperf: left as it is", fs.describe(name))


def _may_replace(fs: Filesystem, name: str) -> bool:
    try:
        text = fs.read_bytes(name).decode("utf-8", "replace")
    except FileNotFoundError:
        return True
    if name == CARD_FILE:
        return _MARKER in text or _is_unmarked_card(text)
    return json.dumps(_DESCRIPTION) in text


def _is_unmarked_card(text: str) -> bool:
    """Whether ``text`` is a card from before the marker.

    A later card whose marker the user has removed does not count.
    """
    if not text.startswith("---\npretty_name: "):
        return False
    head, _, body = text.partition("\n---\n")
    lines = head.splitlines()
    return "size_categories:" in lines and _TAG not in lines and _DESCRIPTION in body


def card_text(dataset: Dataset, *, pretty_name: str, license_name: str | None) -> str:
    """Return the whole ``README.md``."""
    stats = dataset_stats(dataset)
    parts = (
        _front_matter(dataset, stats, pretty_name, license_name),
        _MARKER,
        f"# {visible(pretty_name)}\n\n{_DESCRIPTION}",
        _contents(dataset, stats),
        _devices(dataset),
        _loading(dataset),
        _MEASUREMENT,
        _caveats(stats),
        *(_columns(table) for table in TABLES),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(
    dataset: Dataset, stats: DatasetStats, pretty_name: str, license_name: str | None
) -> str:
    size = next((text for most, text in _SIZE_CATEGORIES if stats.num_samples < most), "n>100M")
    lines = ["---", f"pretty_name: {_quoted(pretty_name)}"]
    if license_name is not None:
        lines.append(f"license: {_quoted(license_name)}")
    lines += ["tags:", "- OpenCL", "- GPU", "- performance", _TAG, "size_categories:", f"- {size}"]
    tables = [table for table in TABLES if dataset.shards(table)]
    if tables:
        lines.append("configs:")
    for table in tables:
        lines.append(f"- config_name: {table}")
        if table == "samples":
            lines.append("  default: true")
        lines += ["  data_files:", "  - split: train", "    path:"]
        lines += [f"    - {_quoted(entry.name)}" for entry in dataset.shards(table)]
    return "\n".join([*lines, "---"])


def _quoted(text: str) -> str:
    return visible_json(json.dumps(text, ensure_ascii=False))  # YAML accepts every JSON string


def _contents(dataset: Dataset, stats: DatasetStats) -> str:
    meanings: dict[str, str] = {OK_STATUS: "Timed."} | {
        code.value: FAILURE_MEANINGS[code] for code in FailureCode
    }
    rows = [[in_code(s), f"{n:,}", meanings.get(s, "")] for s, n in stats.by_status.items()]
    run = dataset.run
    lines = [
        "## What is in it",
        "",
        f"{stats.num_samples:,} launch configs of {stats.num_kernels:,} kernels "
        f"({stats.num_families:,} families) on {stats.num_devices:,} device(s). "
        f"{stats.num_done_tasks:,} of {stats.num_planned_tasks:,} planned tasks (a kernel on a "
        f"device class) have results; {stats.num_pending_tasks:,} are pending.",
        "",
        *_markdown_table(["status", "rows", "meaning"], rows),
        "",
        *_count_lines("By device class", stats.by_device_class),
        *_count_lines("By regime", stats.by_regime),
        *_count_lines("By input strategy", stats.by_strategy),
        *_count_lines("By suite", stats.by_suite),
        f"- Dataset version {dataset.manifest.version}, plan {in_code(run.plan_hash)}, harness "
        f"version {run.harness_version} (version of the measuring code), schema version "
        f"{dataset.manifest.schema_version}.",
    ]
    if run.merged_from:
        lines.append(f"- Merged from the plans {', '.join(map(in_code, run.merged_from))}.")
    return "\n".join(lines)


def _count_lines(title: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    return [f"- {title}: " + ", ".join(f"{in_code(k)} {n:,}" for k, n in counts.items()) + "."]


def _devices(dataset: Dataset) -> str:
    names = ["device_class", "name", "driver", "compute_units", "peak_dram_gbps", "timer_step_ns"]
    rows = [
        ["" if row[name] is None else _cell(row[name]) for name in names]
        for row in dataset.devices(names).to_pylist()
    ]
    return "\n".join(["## Devices", "", *_markdown_table(names, rows)]) if rows else ""


def _loading(dataset: Dataset) -> str:
    if not dataset.shards("samples"):
        return "## How to load it\n\nThere are no results yet."
    return _LOADING


_LOADING = """## How to load it

With DIR the folder of this file:

```python
import datasets

samples = datasets.load_dataset("DIR", "samples", split="train")
kernels = datasets.load_dataset("DIR", "kernels", split="train")
```

```python
import pandas as pd

samples = pd.read_parquet("DIR/samples")
ok = samples[samples["status"] == "ok"]
```

```sql
SELECT k.name, s.global_size, s.local_size, s.median_ns
FROM read_parquet('DIR/samples/*.parquet') AS s
JOIN read_parquet('DIR/kernels/*.parquet') AS k USING (task_id)
WHERE s.status = 'ok'
ORDER BY s.median_ns DESC
LIMIT 10;
```

While a collection is running, and for a day after a compaction, the folder may hold further files.
Only the files that the highest `manifest-*.json` lists count. LLMPerf's own reader follows it:

```python
from pathlib import Path
from llmperf_common.store.tables.reader import open_dataset

table = open_dataset(Path("DIR")).samples(["sample_id", "status", "median_ns"])
```"""

_MEASUREMENT = """## How it was measured

- Times are device event times of single launches, in nanoseconds. If `launches_per_reading` is
  above 1, they are means of that many launches.
- `time_ns` are the warm readings in launch order. `median_ns`, their median, is the target.
  `cold_ns` are readings after a flush of the last-level cache; `first_ns` is the time of the
  first launch.
- Readings are repeated until their relative standard error is small or a budget is spent: see
  `stop_reason`.
- Buffers that a kernel writes are refilled, untimed, so that every launch does the same work.
- Launch sizes are stratified over three regimes: fewer work-groups than compute units (`idle_sm`),
  up to 20 times as many (`under_utilised`), and up to 1,000 times (`fully_utilised`)."""


def _caveats(stats: DatasetStats) -> str:
    lines = ["## What to keep in mind", ""]
    if stats.censored_share is not None:
        by = ", ".join(f"{in_code(k)} {v:.2%}" for k, v in stats.censored_share_by_regime.items())
        lines.append(
            f"- Launches above the time budget have no time (`over_time_budget`): "
            f"{stats.censored_share:.2%} of these launches and the timed ones together"
            + (f" ({by})." if by else ".")
            + " Long launches are thus under-represented."
        )
    if stats.short_share is not None:
        lines.append(
            f"- {stats.short_share:.2%} of the timed launches take less than 10 µs. The launch "
            "itself is a large part of such a time."
        )
    if stats.by_activity:
        known = sum(stats.by_activity.values())
        idle, few = (
            stats.by_activity.get(one, 0) for one in (Activity.NOTHING, Activity.FEW_ITEMS)
        )
        lines.append(
            f"- {idle:,} of {known:,} kernels with timed launches do nothing on their inputs, "
            f"{few:,} leave more than nine tenths of their work-items idle (`kernels.activity`). "
            "Their rows are kept; a model may leave them out."
        )
    lines += [
        "- The input strategy `simple` makes every buffer and integer scalar as large as the "
        "global size. A kernel that needs other sizes may do other work than its author meant.",
        "- Split by `family_id`, not by row: near duplicates of one kernel share a family.",
        "- Failed launches are rows, too. Filter `status = 'ok'` for times.",
    ]
    return "\n".join(lines)


def _columns(table: str) -> str:
    rows = []
    for field in TABLES[table]:
        metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
        kind = "list" if pa.types.is_list(field.type) else str(field.type).split("<", 1)[0]
        rows.append([f"`{field.name}`", kind, metadata.get("unit", ""), metadata["description"]])
    table_lines = _markdown_table(["column", "type", "unit", "meaning"], rows)
    return "\n".join([f"## Columns of `{table}`", "", *table_lines])


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else in_markdown(str(value))

"""The page of the dataset's tables: manifests, columns, values of text columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from llmperf.reference.markdown import listed, table
from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import Access, ArgumentKind, Regime, StopReason, Strategy
from llmperf_common.schemas import SCHEMA_VERSION, TABLES
from trainer.evaluation.scoring import PREDICTIONS

_TABLE_TITLES = {
    "samples": "One row per launch config, timed or failed. Failed rows have null times.",
    "kernels": "One row per task (a kernel on a device class), committed with its samples.",
    "devices": "One row per device.",
}


_MANIFEST_FIELDS = (
    ("`schema_version`, `version`", "Version of this schema; version of the dataset, the number in the file's name."),
    ("`plan_hash`, `epoch`", "Plan hash of the run; epoch of the ledger whose collector published this manifest (it never decreases)."),
    ("`published_s`", "Time of publication, seconds since 1970; not in schema versions below 5."),
    ("`tasks`, `rows`", "Number of tasks with results; number of rows by table. Both count all shards."),
    ("`earlier`", "Earlier manifests that still exist: [version, published_s]. Not in schema versions below 5."),
    ("`dropped`", "Shards that `llmperf dataset repair` has removed. Not in schema versions below 5."),
    ("`replaces`", "For each compacted shard, the names of the shards that it replaces. Segments hold earlier entries."),
    ("`segments`", "Files with the first part of the list of shards: name, bytes, sha256, number of shards. Each is one JSON object with `shards` and `replaces`. Not in schema versions below 5, where the manifest holds the whole list."),
    ("`shards`", "The last part of the list of shards: name, rows, bytes, sha256, tasks."),
)  # fmt: skip


def schema_page() -> Iterator[str]:
    """Yield the lines of ``schema.md``."""
    yield f"Schema version {SCHEMA_VERSION}. A dataset has three tables, stored in Parquet shards."
    yield "The `manifest-*.json` with the highest number lists the valid shards. Later versions"
    yield "only add nullable columns."
    yield ""
    yield "## `manifest-*.json`"
    yield ""
    yield "One JSON object. The list of shards consists of the lists in its `segments`, in order,"
    yield "followed by its own `shards`."
    yield "In Python `latest_manifest(open_filesystem(DIR)).shards` (from"
    yield "`llmperf_common.store.manifests.manifest`) is the whole list."
    yield ""
    yield from table(("field", "meaning"), _MANIFEST_FIELDS)
    for name, schema in TABLES.items():
        yield ""
        yield f"## `{name}`"
        yield ""
        yield _TABLE_TITLES[name]
        yield ""
        yield from _columns(schema)
    yield ""
    yield "## Values of text columns"
    yield ""
    yield from table(("column", "values"), _value_rows())
    yield ""
    yield "## `static_features`"
    yield ""
    yield "Members of `kernels.static_features`, each a float64."
    yield ""
    yield from table(
        ("name", "meaning"), ((f"`{name}`", text) for name, text in STATIC_FEATURES.items())
    )
    yield ""
    yield "## `predictions.parquet`"
    yield ""
    yield "Written by `llmperf train` and `llmperf evaluate`: one row per model and sample. The"
    yield "interval is null if the model gives none."
    yield ""
    yield from _columns(PREDICTIONS, with_meaning=False)


def _columns(schema: pa.Schema, *, with_meaning: bool = True) -> list[str]:
    head = ("column", "type", "unit", "nullable", "meaning")
    rows = []
    for field in schema:
        metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
        row = (
            f"`{field.name}`",
            _kind(field.type),
            metadata.get("unit", ""),
            "yes" if field.nullable else "no",
            metadata.get("description", ""),
        )
        rows.append(row if with_meaning else row[:4])
    return table(head if with_meaning else head[:4], rows)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        names = [member.name for member in kind]
        if names == list(STATIC_FEATURES):
            return "struct, see below"
        return "{" + ", ".join(f"{member.name}: {_kind(member.type)}" for member in kind) + "}"
    return {"double": "float64", "string": "text"}.get(str(kind), str(kind))


def _value_rows() -> Iterator[tuple[str, str]]:
    yield "`samples.status`", listed([OK_STATUS, *FailureCode])
    yield "`samples.regime`", listed(Regime)
    yield "`samples.input_strategy`, `samples.input_strategies`", listed(Strategy)
    yield "`samples.stop_reason`", listed(StopReason)
    yield "`samples.args.kind`, `kernels.args.kind`", listed(ArgumentKind)
    yield "`kernels.args.access`", listed(Access)

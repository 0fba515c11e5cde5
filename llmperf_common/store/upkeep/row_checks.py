"""Check the rows of one shard: ids, statuses, times and references.

Owns the rules that hold within a samples shard or a kernels shard. The checks work column by
column: 400,000 rows take a few seconds. ``verify.py`` owns the rules between shards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS, CensorReason, FailureCode
from llmperf_common.features.launch_columns import device_from_mapping
from llmperf_common.features.table_columns import MAX_POSITION
from llmperf_common.features.work import OPTIONAL_WORK
from llmperf_common.files.python_rows import python_rows
from llmperf_common.ids import ID_HEX_DIGITS, canonical_json, kernel_id, sha256_hex, task_id
from llmperf_common.records import ArgumentKind
from llmperf_common.store.files.names import checked_id
from llmperf_common.store.tables.rows import FEWEST_FOR_IQR
from llmperf_common.store.upkeep.problems import Problem, ProblemKind, naming

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_STATUSES = [OK_STATUS, *(code.value for code in FailureCode)]
_TIME_COLUMNS = ("time_ns", "median_ns", "min_ns", "iqr_ns", "mean_ns", "first_ns", "cold_ns")
_STATISTIC_TOLERANCE = 1e-9
"""Maximum relative difference between a stored and a computed statistic. Rounding causes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The tasks, devices and version that the samples of one shard may refer to.

    Attributes:
        tasks: (kernel id, device class) by task id, from the kernels shard of the same name; None
            if unknown.
        devices: device class by device id; None if unknown.
        harness_version: version of the measuring code in the run's record; None if unknown.
    """

    tasks: Mapping[str, tuple[str, str]] | None
    devices: Mapping[str, str] | None
    harness_version: int | None


def check_kernels(table: pa.Table, name: str, plan_hashes: Collection[str]) -> list[Problem]:
    """Check every row of a kernels shard: its task id, kernel id and source hash.

    A kernel's id is not checked if its source is null (not published) or empty (it could not be
    decoded, and the id is that of the raw bytes).
    """
    bad_task, bad_kernel, bad_source = [], [], []
    columns = ["task_id", "kernel_id", "device_class", "name", "source", "source_sha256", "build"]
    for row in python_rows(table.select(columns)):
        task, kernel, source = row["task_id"], row["kernel_id"], row["source"]
        if task not in {
            task_id(plan_hash=plan, kernel_id=kernel, device_class=row["device_class"])
            for plan in plan_hashes
        }:
            bad_task.append(task)
        if not source:
            continue
        if sha256_hex(source.encode()) != row["source_sha256"]:
            bad_source.append(kernel)
        options = (row["build"] or {}).get("options")
        if options is not None and kernel != kernel_id(
            name=row["name"], source=source, build_options=options
        ):
            bad_kernel.append(kernel)
    texts = [
        naming(bad, what, noun)
        for bad, what, noun in (
            (bad_task, "the id does not match plan, kernel and device class", "task"),
            (bad_source, "source_sha256 does not match the source", "kernel"),
            (bad_kernel, "the id does not match name, source and build options", "kernel"),
        )
        if bad
    ]
    return [Problem(kind=ProblemKind.ID, name=name, what=text) for text in texts]


def check_samples(table: pa.Table, name: str, around: Surroundings) -> list[Problem]:
    """Check every row of a samples shard, in today's schema."""
    table = table.combine_chunks()
    checks = (
        _statuses(table),
        _times(table),
        _statistics(table),
        _ids(table, around),
        _works(table),
        _arguments(table),
    )
    problems = [
        Problem(kind=kind, name=name, what=naming(_ids_where(table, mask), what))
        for found in checks
        for kind, mask, what in found
        if mask.any()
    ]
    return problems + _unsafe_ids(table, name) + _references(table, name, around)


_Finding = tuple[ProblemKind, Mask, str]


def _statuses(table: pa.Table) -> list[_Finding]:
    known = _mask(pc.is_in(table.column("status"), pa.array(_STATUSES)))
    censored = _mask(pc.is_valid(table.column("censor_reason")))
    reasoned = _mask(pc.is_in(table.column("censor_reason"), pa.array([*CensorReason])))
    is_ok = _is_ok(table)
    sizes, local_sizes = _lengths(table, "global_size"), _lengths(table, "local_size")
    return [
        (ProblemKind.STATUS, ~known, "the status is neither 'ok' nor a failure code"),
        (ProblemKind.STATUS, censored & ~reasoned, "censor_reason is unknown"),
        (ProblemKind.STATUS, is_ok & censored, "the status is 'ok' but there is a censor_reason"),
        (ProblemKind.STATUS, is_ok & (sizes == 0), "the status is 'ok' but there is no NDRange"),
        (ProblemKind.STATUS, sizes != local_sizes, "global_size and local_size differ in length"),
    ]


def _times(table: pa.Table) -> list[_Finding]:
    is_ok = _is_ok(table)
    has_quartiles = _lengths(table, "time_ns") >= FEWEST_FOR_IQR
    absent, present, not_positive = (np.zeros(len(table), np.bool_) for _ in range(3))
    for name in _TIME_COLUMNS:
        is_null = _mask(pc.is_null(table.column(name)))
        is_due = is_ok if name != "iqr_ns" else is_ok & has_quartiles
        absent |= is_due & is_null
        present |= ~is_ok & ~is_null
        if name in ("time_ns", "cold_ns"):
            rows, values = _flat(table, name)
            not_positive[rows[~((values > 0) & np.isfinite(values))]] = True
        else:
            values = _floats(table, name)
            low = values >= 0 if name == "iqr_ns" else values > 0
            not_positive |= is_ok & ~is_null & ~(low & np.isfinite(values))
    absent |= is_ok & (_lengths(table, "time_ns") == 0)
    return [
        (ProblemKind.TIME, absent, "the status is 'ok' but a time is null"),
        (ProblemKind.TIME, present, "the launch failed but has a time"),
        (ProblemKind.TIME, not_positive, "a time is not a positive number"),
    ]


def _statistics(table: pa.Table) -> list[_Finding]:
    """Check that median, minimum, mean and interquartile range follow from ``time_ns``."""
    lengths = np.where(_is_ok(table), _lengths(table, "time_ns"), 0)
    _, readings = _flat(table, "time_ns")
    all_lengths = _lengths(table, "time_ns")
    starts = np.cumsum(all_lengths) - all_lengths
    wrong = np.zeros(len(table), np.bool_)
    stored = {name: _floats(table, name) for name in ("median_ns", "min_ns", "mean_ns", "iqr_ns")}
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        matrix = readings[starts[rows][:, None] + np.arange(length)]
        lower, median, upper = np.percentile(matrix, [25, 50, 75], axis=1)
        expected = {
            "median_ns": median,
            "min_ns": matrix.min(axis=1),
            "mean_ns": matrix.mean(axis=1),
            "iqr_ns": upper - lower,
        }
        for name, values in expected.items():
            found = stored[name][rows]
            # Rounding errors scale with the largest reading, even if the statistic is small.
            slack = _STATISTIC_TOLERANCE * matrix.max(axis=1)
            # _times reports a null statistic already.
            wrong[rows] |= np.isfinite(found) & ~(np.abs(found - values) <= slack)
    return [(ProblemKind.TIME, wrong, "a statistic does not follow from time_ns")]


def _works(table: pa.Table) -> list[_Finding]:
    """Check that counts are finite and not negative, and that rows with counts have no reason."""
    works = _array(table, "work")
    counted = _mask(pc.is_valid(table.column("work")))
    wrong = np.zeros(len(table), np.bool_)
    for number, member in enumerate(works.type):
        if not pa.types.is_boolean(member.type):
            values = np.asarray(works.field(number).to_numpy(zero_copy_only=False), np.float64)
            is_null = works.field(number).is_null().to_numpy(zero_copy_only=False)
            is_missing = is_null & (member.name in OPTIONAL_WORK)
            wrong |= counted & ~is_missing & ~(np.isfinite(values) & (values >= 0))
    both = counted & _mask(pc.is_valid(table.column("work_reason")))
    return [
        (ProblemKind.WORK, wrong, "a count of work is missing, negative or infinite"),
        (ProblemKind.WORK, both, "the work was counted but work_reason says why not"),
    ]


def _arguments(table: pa.Table) -> list[_Finding]:
    """Check that each argument has a kind and a possible position."""
    rows = np.repeat(np.arange(len(table)), _lengths(table, "args"))
    items = _array(table, "args").flatten()
    is_known = pc.is_in(pc.struct_field(items, "kind"), pa.array([*ArgumentKind]))
    position = pc.fill_null(pc.struct_field(items, "position"), -1)
    is_placed = pc.and_(pc.greater_equal(position, 0), pc.less_equal(position, MAX_POSITION))
    is_whole = pc.and_(is_known, is_placed).to_numpy(zero_copy_only=False)
    wrong = np.zeros(len(table), np.bool_)
    wrong[rows[~np.asarray(is_whole, np.bool_)]] = True
    return [(ProblemKind.ID, wrong, "an argument is null, or has no kind or no possible position")]


def check_devices(table: pa.Table, name: str) -> list[Problem]:
    """Check the id and the numbers of every device in a devices shard."""
    problems = _unsafe_ids(table, name)
    for row in table.to_pylist():
        try:
            device_from_mapping(row)
        except ValueError as error:
            what = f"device {row['device_id']}: {error}"
            problems.append(Problem(kind=ProblemKind.DAMAGED, name=name, what=what))
    return problems


def _unsafe_ids(table: pa.Table, name: str) -> list[Problem]:
    """Return a problem if a device id is none, because a merge names files after these ids."""
    what, num_others = "", -1
    for device in pc.unique(table.column("device_id")).to_pylist():
        try:
            checked_id(device, "device_id")
        except ValueError as error:
            what, num_others = what or str(error), num_others + 1
    more = f" (and {num_others} more)" if num_others > 0 else ""
    return [Problem(kind=ProblemKind.ID, name=name, what=what + more)] if what else []


def _ids(table: pa.Table, around: Surroundings) -> list[_Finding]:
    expected = sample_ids_of(table)
    wrong = np.array(
        [a != b for a, b in zip(table.column("sample_id").to_pylist(), expected, strict=True)],
        np.bool_,
    )
    versions = table.column("harness_version").to_numpy()
    wanted = around.harness_version
    other = versions != (versions if wanted is None else wanted)
    return [
        (ProblemKind.ID, wrong, "the sample_id does not match the row"),
        (ProblemKind.REFERENCE, other, f"harness_version is not {around.harness_version}"),
    ]


def sample_ids_of(table: pa.Table) -> list[str]:
    """Return the ``sample_id`` that each row of ``samples`` should have by its content.

    The ids equal those of ``ids.sample_id`` over ``records.launch_argument_json``, as a test
    checks. They are computed by column.
    """
    texts = [table.column(name).to_pylist() for name in ("kernel_id", "device_class")]
    quoted = {text: canonical_json(text) for column in texts for text in set(column)}
    global_sizes = table.column("global_size").to_pylist()
    local_sizes = table.column("local_size").to_pylist()
    versions = table.column("harness_version").to_pylist()
    arguments = _argument_texts(table)
    return [
        content_id_of_text(
            f"[{quoted[kernel]},{_list_text(sizes)},{_list_text(local)},[{args}],"
            f"{quoted[device_class]},{version}]"
        )
        for kernel, device_class, sizes, local, args, version in zip(
            *texts, global_sizes, local_sizes, arguments, versions, strict=True
        )
    ]


def content_id_of_text(text: str) -> str:
    """Return ``ids.content_id("sample", value)``; ``text`` is the value's canonical JSON."""
    return sha256_hex(f"sample\n{text}".encode())[:ID_HEX_DIGITS]


def _list_text(sizes: list[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"


def _argument_texts(table: pa.Table) -> list[str]:
    """Return the arguments of each row as JSON, without outer brackets."""
    column = _array(table, "args")
    items = column.flatten()
    names = ("position", "kind", "elements", "value", "contents", "contents_limit")
    members = [items.field(name).to_pylist() for name in names]
    quoted = {text: canonical_json(text) for text in {*members[1], *members[4]}}
    texts = [
        f"[{position},{quoted[kind]},{'null' if elements is None else elements},{_number(value)}"
        + ("]" if rule is None else f",{quoted[rule]},{'null' if limit is None else limit}]")
        for position, kind, elements, value, rule, limit in zip(*members, strict=True)
    ]
    ends = np.cumsum(_lengths(table, "args")).tolist()
    starts = [0, *ends][:-1]
    return [",".join(texts[a:b]) for a, b in zip(starts, ends, strict=True)]


def _number(value: float | None) -> str:
    if value is None:
        return "null"
    return str(int(value)) if value.is_integer() else repr(value)


def _references(table: pa.Table, name: str, around: Surroundings) -> list[Problem]:
    problems = []
    groups = (
        table.append_column("is_empty", pa.array(_lengths(table, "global_size") == 0))
        .group_by(["task_id", "kernel_id", "device_class"])
        .aggregate([([], "count_all"), ("is_empty", "any")])
        .to_pylist()
    )
    crowded = [g["task_id"] for g in groups if g["is_empty_any"] and g["count_all"] > 1]
    if crowded:
        what = naming(crowded, "other rows beside the row without NDRange", "task")
        problems.append(Problem(kind=ProblemKind.STATUS, name=name, what=what))
    if around.tasks is not None:
        bad = [
            g["task_id"]
            for g in groups
            if around.tasks.get(g["task_id"]) != (g["kernel_id"], g["device_class"])
        ]
        if bad:
            why = "the kernels shard has no row of this task, kernel and class"
            what = naming(bad, why, "task")
            problems.append(Problem(kind=ProblemKind.REFERENCE, name=name, what=what))
    if around.devices is not None:
        pairs = table.group_by(["device_id", "device_class"]).aggregate([]).to_pylist()
        strange = [
            p["device_id"] for p in pairs if around.devices.get(p["device_id"]) != p["device_class"]
        ]
        if strange:
            what = naming(strange, "not in devices, or of another class there", "device")
            problems.append(Problem(kind=ProblemKind.REFERENCE, name=name, what=what))
    return problems


def _ids_where(table: pa.Table, mask: Mask) -> list[str]:
    found: list[str] = table.column("sample_id").filter(pa.array(mask)).to_pylist()
    return found


def _is_ok(table: pa.Table) -> Mask:
    return _mask(pc.equal(table.column("status"), OK_STATUS))


def _array(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _mask(column: pa.ChunkedArray) -> Mask:
    return np.asarray(column.fill_null(False).to_numpy(), np.bool_)


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), np.float64)  # null becomes NaN


def _lengths(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(pc.list_value_length(table.column(name)).fill_null(0).to_numpy(), np.int64)


def _flat(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return row number and value of every item of a list column; a null item is NaN."""
    rows = np.repeat(np.arange(len(table)), _lengths(table, name))
    values = _array(table, name).flatten().to_numpy(zero_copy_only=False)
    return rows, np.asarray(values, np.float64)

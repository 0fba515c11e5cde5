"""The usable rows of a dataset, with features, targets and groups.

Owns the function that reads a dataset (``load_data``) and the rules for rows: ``ok`` rows with an
NDRange may be fitted; of these, only rows whose readings time one launch each are scored
(``single_launch``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.features.activity import Activity
from llmperf_common.features.features import features_from_tables
from llmperf_common.features.launch_columns import sums
from llmperf_common.features.table_columns import WORK_COLUMN, kernel_rows
from llmperf_common.schemas import SAMPLES
from llmperf_common.statistics.metrics import encode
from llmperf_common.store.files.location import Location
from llmperf_common.store.tables.reader import open_dataset
from trainer.data.foreign_files import reading
from trainer.data.plausible import check_devices, check_features, check_times
from trainer.errors import BadInput
from trainer.interface import Codes, Floats, Rows

SAMPLE_COLUMNS = (
    "sample_id",
    "task_id",
    "kernel_id",
    "device_id",
    "device_class",
    "global_size",
    "local_size",
    "args",
    "regime",
    "input_strategy",
    "status",
    "median_ns",
    "iqr_ns",
    "launches_per_reading",
)
"""Columns of ``samples`` that training reads. The individual readings are not among them."""

UNKNOWN = "unknown"

Texts = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The n ok rows of a dataset, with all that splitting, fitting and scoring need.

    Attributes:
        rows: features and tables.
        devices: the ``devices`` table.
        log2_ns: log2 of the measured medians in ns, shape (n,).
        family_id: family of each row's kernel, shape (n,).
        suite: suite of each row's kernel, shape (n,).
        single_launch: whether every reading timed one launch, shape (n,); only these rows are
            scored.
        num_by_status: number of rows by status, over the whole dataset.
        num_ok_by_regime: number of ok rows by regime.
        num_censored_by_regime: number of ``over_time_budget`` rows by regime.
        identity: ``plan_hashes``, ``manifest_version`` and ``harness_version`` of the dataset.
    """

    rows: Rows
    devices: pa.Table
    log2_ns: Floats
    family_id: Texts
    suite: Texts
    single_launch: npt.NDArray[np.bool_]
    num_by_status: Mapping[str, int]
    num_ok_by_regime: Mapping[str, int]
    num_censored_by_regime: Mapping[str, int]
    identity: Mapping[str, object]

    def __len__(self) -> int:
        return len(self.log2_ns)

    def take(self, index: Codes) -> TrainingData:
        """Return the rows at ``index``; the counts stay those of the whole dataset."""
        return replace(
            self,
            rows=self.rows.take(index),
            log2_ns=self.log2_ns[index],
            family_id=self.family_id[index],
            suite=self.suite[index],
            single_launch=self.single_launch[index],
        )

    def content_id(self) -> str:
        """Return a hash (20 hex digits) of what training uses of the rows, whatever their order.

        These are sample ids, times, families and suites. Families and suites are among them because
        they decide the split, and a merge with other datasets may change them.
        """
        ids = self.texts("sample_id")
        order = np.argsort(ids, kind="stable")
        digest = hashlib.sha256("\n".join(ids[order].tolist()).encode())
        digest.update(self.log2_ns[order].tobytes())
        for units in (self.family_id, self.suite):
            digest.update("\n".join(units[order].tolist()).encode())
        return digest.hexdigest()[:20]

    def texts(self, column: str) -> Texts:
        """Return a text column of the samples, with "unknown" for null, shape (n,)."""
        return _texts(self.rows.samples, column)

    def kernel_codes(self) -> Codes:
        """Return one code for each (kernel, device class), shape (n,)."""
        return encode(self.texts("kernel_id"), self.texts("device_class"))

    def kernel_families(self) -> dict[str, str]:
        """Return a mapping from kernel id to family id, for every kernel of the dataset."""
        table = self.rows.kernels
        return dict(
            zip(
                table.column("kernel_id").to_pylist(),
                table.column("family_id").to_pylist(),
                strict=True,
            )
        )

    def family_suites(self) -> dict[str, set[str]]:
        """Return the suites of each family's kernels by family id, for families with an ok row."""
        usable = set(np.unique(self.family_id).tolist())
        suites: dict[str, set[str]] = {family: set() for family in sorted(usable)}
        # A kernel without an ok row counts, too, because it is a near duplicate of the others.
        pairs = zip(
            self.rows.kernels.column("family_id").to_pylist(),
            self.rows.kernels.column("suite").to_pylist(),
            strict=True,
        )
        for family, suite in pairs:
            if family in suites:
                suites[family].add(suite)
        return suites

    def choice_codes(self) -> Codes:
        """Return a code for each row, equal if rows differ only in local and ``__local`` sizes."""
        columns = [self.texts("kernel_id"), self.texts("device_class")]
        sizes = pc.binary_join(
            pc.cast(
                self.rows.samples.column("global_size").combine_chunks(), pa.list_(pa.string())
            ),
            ",",
        )
        return encode(
            *columns, sizes.to_numpy(zero_copy_only=False).astype(str), self._argument_print()
        )

    def _argument_print(self) -> Floats:
        """Return a number that identifies each row's arguments except local buffers, shape (n,)."""
        lists = self.rows.samples.column("args").combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(len(lists)), lengths)
        items = lists.flatten()
        position = items.field("position").to_numpy(zero_copy_only=False)
        amount = pc.coalesce(
            items.field("value"), pc.cast(items.field("elements"), pa.float64()), pa.scalar(0.0)
        ).to_numpy(zero_copy_only=False)
        counted = ~pc.equal(items.field("kind"), "local_buffer").to_numpy(zero_copy_only=False)
        weight = np.sqrt(2.0 + position) * counted
        return sums(owner, amount * weight, len(lists))


def _texts(table: pa.Table, column: str) -> Texts:
    filled = pc.fill_null(table.column(column), UNKNOWN)
    return np.asarray(filled.to_numpy(), dtype=str)


def load_data(path: Location) -> TrainingData:
    """Read the newest version of the dataset in ``path``.

    Raises:
        BadInput: The dataset has no usable row, or impossible numbers.
        StoreError: There is no dataset in ``path``.
        ShardError: A shard is missing or damaged.
    """
    dataset = open_dataset(path)
    columns = [*SAMPLE_COLUMNS, *(name for name in (WORK_COLUMN,) if name in SAMPLES.names)]
    identity = {
        "plan_hashes": list(dataset.run.plan_hashes),
        "manifest_version": dataset.manifest.version,
        "harness_version": dataset.run.harness_version,
    }
    with reading(f"{path}: the dataset's rows (check them with `llmperf dataset verify`)"):
        return data_from_tables(
            dataset.samples(columns=columns),
            dataset.kernels(),
            dataset.devices(),
            identity=identity,
        )


def data_from_tables(
    samples: pa.Table, kernels: pa.Table, devices: pa.Table, *, identity: Mapping[str, object]
) -> TrainingData:
    """Return the usable rows of a dataset that is given as its three tables.

    Args:
        samples: with at least ``SAMPLE_COLUMNS``.
        kernels: one row for each task.
        devices: one row for each device.
        identity: ``plan_hashes`` (a list, from the run) and ``manifest_version``.

    Raises:
        BadInput: No row is ok, or a time, a device's number or a feature is impossible.
    """
    status = _texts(samples, "status")
    regime = _texts(samples, "regime")
    sized = pc.list_value_length(samples.column("global_size")).to_numpy() > 0
    median = samples.column("median_ns").cast(pa.float64()).to_numpy()
    # A timer with coarse steps may have read 0 ns: such a row says nothing.
    usable = (status == OK_STATUS) & sized & (median != 0)
    if not np.any(usable):
        raise BadInput(
            f"the dataset has {len(samples)} rows and none is ok, so there is nothing to learn "
            "from; list its failures with `llmperf dataset stats`"
        )
    check_times(samples, median, usable)
    check_devices(devices)
    kept = samples.filter(pa.array(usable))
    row = kernel_rows(kept, kernels)
    features = features_from_tables(kept, kernels, devices)
    check_features(features, kept)
    per_reading = kept.column("launches_per_reading").cast(pa.float64()).to_numpy()
    return TrainingData(
        rows=Rows(
            features=features,
            samples=kept,
            kernels=kernels,
            kernel_row=row,
        ),
        devices=devices,
        log2_ns=np.log2(median[usable]),
        family_id=_texts(kernels, "family_id")[row],
        suite=_texts(kernels, "suite")[row],
        single_launch=~(per_reading > 1),
        num_by_status=_counts(status),
        num_ok_by_regime=_counts(regime[usable]),
        num_censored_by_regime=_counts(regime[status == FailureCode.OVER_TIME_BUDGET.value]),
        identity=dict(identity),
    )


def _counts(labels: Texts) -> dict[str, int]:
    names, counts = np.unique(labels, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def has_source(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return for each row whether the dataset holds its kernel's source, shape (n,)."""
    known = rows.kernels.column("source").is_valid().combine_chunks().to_numpy(zero_copy_only=False)
    return np.asarray(known, dtype=np.bool_)[rows.kernel_row]


def with_sources(data: TrainingData) -> tuple[TrainingData, list[str]]:
    """Return the rows whose kernel has a source, and a note about the rows left out, if any.

    Raises:
        BadInput: No kernel has a source.
    """
    known = has_source(data.rows)
    if known.all():
        return data, []
    if not known.any():
        raise BadInput(
            "no kernel of the dataset has a source, but this model reads sources: use a dataset "
            "with sources, or train a model that reads features only (--preset gbdt)"
        )
    num_kernels = len(np.unique(data.rows.kernel_row[~known]))
    note = f"kernels without source, left out: {num_kernels:,} ({int((~known).sum()):,} rows)"
    return data.take(np.flatnonzero(known)), [note]


def is_active(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return for each row whether its task writes a result or this is unknown, shape (n,)."""
    if "activity" not in rows.kernels.column_names:
        return np.ones(len(rows.kernel_row), dtype=np.bool_)
    label = _texts(rows.kernels, "activity")[rows.kernel_row]
    return np.asarray(label != Activity.NOTHING.value, dtype=np.bool_)


def with_activity(data: TrainingData, rule: str) -> tuple[TrainingData, list[str]]:
    """Return the rows that ``train.rows`` keeps, and a note about the rows left out, if any.

    Args:
        data: the usable rows.
        rule: "active" leaves out tasks that do nothing on their inputs; "all" keeps every row.

    Raises:
        BadInput: No row would remain.
    """
    active = is_active(data.rows)
    if rule == "all" or active.all():
        return data, []
    if not active.any():
        raise BadInput(
            "every kernel of the dataset has `kernels.activity` = nothing, that is, it writes no "
            "result: there is nothing to learn from; --set train.rows=all trains on these rows "
            "anyway"
        )
    num_kernels = len(np.unique(data.texts("kernel_id")[~active]))
    note = (
        f"kernels that do nothing on their inputs, left out: {num_kernels:,} "
        f"({int((~active).sum()):,} rows)"
    )
    return data.take(np.flatnonzero(active)), [note]


def row_weights(log2_ns: Floats, kernel: Codes, rule: str) -> Floats:
    """Return the weights of training rows in the fit: positive, with mean 1, shape (n,).

    Args:
        log2_ns: log2 of the measured times, shape (n,).
        kernel: code of each row's kernel, shape (n,).
        rule: "none": equal weights; "kernel": the weights of each kernel have the same sum;
            "decade": 1/sqrt(rows in the row's decade of time), because launches near the launch
            floor are far more numerous than long ones.

    Raises:
        ValueError: ``rule`` is something else.
    """
    if rule == "none":
        return np.ones(len(log2_ns))
    if rule == "kernel":
        group, power = kernel, 1.0
    elif rule == "decade":
        group, power = np.floor(log2_ns / np.log2(10)).astype(np.int64), 0.5
    else:
        raise ValueError(f"weighting rule {rule!r} is not one of none, kernel, decade")
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    weight = counts[index].astype(np.float64) ** -power
    return np.asarray(weight / weight.mean(), dtype=np.float64)

"""A corpus on disk: one Parquet file, written whole or not at all.

Owns its schema and the checks when reading. Signatures and analyses are stored as JSON text,
because they are always read whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from llmperf_common.analysis import Analysis
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.files.foreign_json import check_characters
from llmperf_common.files.outputs import file_to_write
from llmperf_common.files.parquet_files import write_parquet
from llmperf_common.files.parquet_memory import ALWAYS_ALLOWED_TEXT_BYTES, MAX_RATIO, check_memory
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from llmperf_common.files.python_rows import python_rows
from llmperf_common.files.replacing import replacing
from llmperf_common.files.visible import shortened
from llmperf_common.ids import canonical_json, sha256_hex
from llmperf_common.records import Argument, Kernel, Signature
from llmperf_common.store.files.names import checked_id
from llmperf_common.store.tables.foreign_analysis import check_analysis, check_positions
from llmperf_common.store.tables.rows import check_storable
from llmperf_common.text_limits import MAX_SOURCE_BYTES, MAX_TEXT_BYTES, length_problem
from workers.corpus.files import CorpusError
from workers.corpus.foreign_kernel import check_signature
from workers.source.parse_pool import signature_from_json

CORPUS_VERSION = 2
_VERSION_KEY, _SHA256_KEY, _SKIPPED_KEY = (
    b"llmperf.corpus_version",
    b"llmperf.corpus_sha256",
    b"llmperf.skipped",
)
_REQUIRED_TEXTS = (
    "kernel_id", "name", "source", "source_sha256", "path", "suite", "family_id", "build_options",
)  # fmt: skip
_KEPT_TEXTS = (*_REQUIRED_TEXTS, "failure_detail")
"""Columns whose texts a kernel keeps as they are."""
_REPEATED_TEXTS = ("name", "suite", "family_id", "build_options")
_OPTIONAL_TEXTS = ("signature", "failure_code", "failure_stage", "failure_detail")
_LATER_TEXTS = ("analysis", "invented_macros")
"""Optional columns that corpora of earlier releases lack."""
_LONG_TEXTS = frozenset(
    {"name", "source", "build_options", "signature", "analysis", "invented_macros"}
)
"""Columns whose texts may be as long as a source; a dataset has the same limits."""
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in _REQUIRED_TEXTS),
        *(pa.field(name, pa.string()) for name in (*_OPTIONAL_TEXTS, *_LATER_TEXTS)),
    ]
)
_SKIPPED: pydantic.TypeAdapter[tuple[tuple[str, str], ...]] = pydantic.TypeAdapter(
    tuple[tuple[str, str], ...]
)
_ANALYSIS: pydantic.TypeAdapter[Analysis] = pydantic.TypeAdapter(Analysis)
_MACROS: pydantic.TypeAdapter[tuple[str, ...]] = pydantic.TypeAdapter(tuple[str, ...])
_MAGIC = b"PAR1"
_ROWS_AT_ONCE = 500
_ANALYSES_AT_ONCE = 100
_MAX_FILE_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Some kernels, sorted by id, each once.

    ``sha256`` covers the set of kernel ids. ``skipped``: files without a kernel, as (path, reason).
    """

    kernels: tuple[Kernel, ...]
    sha256: str
    skipped: tuple[tuple[str, str], ...] = ()


def is_corpus_file(path: Path) -> bool:
    """Whether ``path`` is a Parquet file, by its name or its first bytes."""
    if not path.is_file():
        return False
    if path.suffix == ".parquet":
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def is_corpus(path: Path) -> bool:
    """Whether ``path`` is a file that ``write_corpus`` wrote, of any version."""
    try:
        return _VERSION_KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def corpus_to_write(path: Path) -> Path:
    """Return the file that ``write_corpus`` may write as ``path``.

    Raises:
        OutputTaken: There is a file or folder that is not a corpus.
    """
    return file_to_write(path, is_ours=is_corpus, what="corpus")


def write_corpus(path: str | os.PathLike[str], corpus: Corpus) -> None:
    """Write a corpus; a reader sees the old file or the complete new one.

    Raises:
        CorpusError: The file cannot be written.
        OutputTaken: There is a file or folder that is not a corpus.
    """
    target = Path(path)
    metadata = {
        _VERSION_KEY: str(CORPUS_VERSION),
        _SHA256_KEY: corpus.sha256,
        _SKIPPED_KEY: json.dumps(corpus.skipped),
    }
    table = pa.Table.from_pylist(
        [_row(kernel) for kernel in corpus.kernels], schema=SCHEMA.with_metadata(metadata)
    )
    try:
        target = corpus_to_write(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as partial:
            write_parquet(table, partial, compression="zstd")
            with partial.open("rb") as stream:
                os.fsync(stream.fileno())
    except OSError as error:
        raise CorpusError(f"{target}: cannot be written: {error.strerror or error}") from None


def read_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Read a corpus that ``write_corpus`` wrote.

    Raises:
        CorpusError: The file is missing, damaged, not a corpus, or of a later version.
    """
    where = Path(path)
    try:
        data = pa.py_buffer(read_plain(where, max_bytes=_MAX_FILE_BYTES))
        check_memory(data)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_header(where, file.schema_arrow, metadata)
            most = max(ALWAYS_ALLOWED_TEXT_BYTES, MAX_RATIO * data.size)
            kernels = tuple(_kernels(file, most))
        for first in range(0, len(kernels), _ANALYSES_AT_ONCE):
            some = kernels[first : first + _ANALYSES_AT_ONCE]
            check_storable([one.analysis for one in some if one.analysis is not None])
        skipped = _SKIPPED.validate_json(metadata.get(_SKIPPED_KEY, b"[]"))
    except CorpusError:
        raise  # CorpusError is a ValueError, too
    except UnfitFileError as error:
        raise CorpusError(str(error)) from None
    except FileNotFoundError:
        raise CorpusError(f"{where} does not exist: make it with `llmperf corpus build`") from None
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(
            f"{where} is damaged or not a Parquet file ({error}): "
            "build it again with `llmperf corpus build`"
        ) from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CorpusError(
            f"{where} has a row that cannot be read: {error}: build it again"
        ) from None
    ids = [kernel.kernel_id for kernel in kernels]
    sha256 = sha256_hex("\n".join(ids).encode())
    if ids != sorted(set(ids)) or sha256.encode() != metadata[_SHA256_KEY]:
        raise CorpusError(f"{where}: its kernels do not match its hash: build it again")
    if not kernels:
        raise CorpusError(f"{where} has no kernels: build it from other sources")
    return Corpus(kernels=kernels, sha256=sha256, skipped=skipped)


class _SharedTexts:
    """The texts of a corpus's kernels: equal ones are in memory once, and all have a limit."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._texts: dict[str, str] = {}

    def shared(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its kept texts shared; ValueError if they take too much memory."""
        for name in _KEPT_TEXTS:
            text = row[name]
            if text is not None and text not in self._texts:
                self._texts[text] = text
                self._num_bytes += sys.getsizeof(text)
        if self._num_bytes > self._max_bytes:
            raise ValueError(
                f"kernel {shortened(str(row['kernel_id']))}: with it, the kernels' texts take more "
                f"than the {self._max_bytes >> 20:,} MiB of memory that are allowed for a file of "
                "this size"
            )
        return {**row, **{name: self._texts.get(row[name]) for name in _KEPT_TEXTS}}


def _kernels(file: pq.ParquetFile, max_bytes: int) -> Iterator[Kernel]:
    """Yield the kernels, a few at a time; kernels share equal values in memory.

    Their texts may take ``max_bytes`` of memory.
    """
    arguments: dict[Argument, Argument] = {}
    numbers: dict[float, float] = {}
    texts = _SharedTexts(max_bytes=max_bytes)
    for batch in file.iter_batches(_ROWS_AT_ONCE):
        for row in python_rows(batch):
            kernel = _kernel(texts.shared(row))
            if kernel.signature is not None:
                kept = dataclasses.replace(
                    kernel.signature,
                    arguments=tuple(
                        arguments.setdefault(one, one) for one in kernel.signature.arguments
                    ),
                    static_features={
                        sys.intern(name): numbers.setdefault(value, value)
                        for name, value in kernel.signature.static_features.items()
                    },
                )
                kernel = dataclasses.replace(kernel, signature=kept)
            yield kernel


def _check_header(where: Path, schema: pa.Schema, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(_VERSION_KEY, b"").decode("ascii", "replace")
    if not version.isdigit() or _SHA256_KEY not in metadata:
        raise CorpusError(
            f"{where} is a Parquet file but not a corpus: "
            "name one that `llmperf corpus build` wrote"
        )
    if int(version) > CORPUS_VERSION:
        raise CorpusError(
            f"{where} has corpus version {version}, but this LLMPerf reads versions up to "
            f"{CORPUS_VERSION}: update LLMPerf"
        )
    missing = [field.name for field in SCHEMA if not _has_column(schema, field)]
    if missing:
        raise CorpusError(f"{where} lacks the columns {', '.join(missing)}: build it again")


def _has_column(schema: pa.Schema, field: pa.Field) -> bool:
    if schema.get_field_index(field.name) < 0:
        return field.name in _LATER_TEXTS
    return bool(schema.field(field.name).type == field.type)


def _row(kernel: Kernel) -> dict[str, str | None]:
    signature, failure = kernel.signature, kernel.failure
    texts: dict[str, str | None] = {name: getattr(kernel, name) for name in _REQUIRED_TEXTS}
    texts["signature"] = canonical_json(dataclasses.asdict(signature)) if signature else None
    texts["failure_code"] = failure.code.value if failure else None
    texts["failure_stage"] = failure.stage.value if failure else None
    texts["failure_detail"] = failure.detail if failure else None
    analysis = kernel.analysis
    texts["analysis"] = canonical_json(dataclasses.asdict(analysis)) if analysis else None
    macros = kernel.invented_macros
    texts["invented_macros"] = None if macros is None else canonical_json(list(macros))
    return texts


def _kernel(row: dict[str, Any]) -> Kernel:
    empty = [name for name in _REQUIRED_TEXTS if row[name] is None]
    if empty:
        raise ValueError(f"kernel {row['kernel_id']} has no {', '.join(empty)}")
    for name, text in row.items():
        most = MAX_SOURCE_BYTES if name in _LONG_TEXTS else MAX_TEXT_BYTES
        if text is not None and (problem := length_problem(f"its {name}", text, most)):
            raise ValueError(f"kernel {shortened(row['kernel_id'])}: {problem}")
    checked_id(row["kernel_id"], "kernel_id")
    checked_id(row["family_id"], "family_id")
    failure = None
    if row["failure_code"] is not None:
        failure = Failure(
            code=FailureCode(row["failure_code"]),
            stage=Stage(row["failure_stage"]),
            detail=row["failure_detail"] or "",
        )
    signature = _signature(row["signature"])
    if signature is None and failure is None:
        raise ValueError(f"kernel {row['kernel_id']} has neither a signature nor a failure")
    analysis, macros = _analysis(row.get("analysis"), signature), row.get("invented_macros")
    if sha256_hex(row["source"].encode()) != row["source_sha256"] and row["source"]:
        raise ValueError(f"kernel {row['kernel_id']}: its source does not match its hash")
    return Kernel(
        **{name: row[name] for name in _REQUIRED_TEXTS if name not in _REPEATED_TEXTS},
        **{name: sys.intern(row[name]) for name in _REPEATED_TEXTS},
        signature=signature,
        failure=failure,
        analysis=analysis,
        invented_macros=None if macros is None else _MACROS.validate_json(macros),
    )


def _signature(text: str | None) -> Signature | None:
    if text is None:
        return None
    document = json.loads(text)
    if "\\u" in text:
        check_characters(document)
    signature = signature_from_json(document)
    check_signature(signature)
    return signature


def _analysis(text: str | None, signature: Signature | None) -> Analysis | None:
    if text is None:
        return None
    analysis = _ANALYSIS.validate_json(text)
    check_positions(analysis, signature)
    check_analysis(analysis)
    return analysis

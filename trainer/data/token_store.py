"""The token cache: the tokens and targets of a training, as memory-mapped arrays in a folder.

One process writes the cache before the first step. Every process opens it read-only, so that the
processes of a host share its pages. The cache is written under a temporary name and then renamed.

::

    STORE/
      store.json         schema, counts, bytes and sha256 of each file, facts given by the caller
      prefix_ids.npy …   one NumPy file for each name of ``ARRAYS``
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.files.plain_files import UnfitFileError, check_plain
from llmperf_common.ids import content_id
from trainer.data.foreign_files import read_json_value
from trainer.data.tokens import Tokens
from trainer.errors import BadInput

SCHEMA = 1
FACTS_FILE = "store.json"
ARRAYS: Mapping[str, type[np.generic]] = {
    "prefix_ids": np.int32,
    "prefix_start": np.int64,
    "suffix_ids": np.int32,
    "suffix_values": np.float64,
    "suffix_start": np.int64,
    "group": np.int64,
    "features": np.float32,
    "log2_ns": np.float32,
    "offset_log2_ns": np.float32,
    "weight": np.float32,
    "is_validation": np.bool_,
    "family": np.int32,
}
"""Name and type of each array."""

_CHUNK_BYTES = 2**24
"""Bytes converted, written or hashed at once. Converting all features at once would need a second
copy of them, which may exceed the memory."""

_MOST_BYTES = 2**43
"""Maximum bytes of a mapped array. Not a practical limit, but ``check_plain`` requires one."""

_TOKEN_FIELDS = tuple(field.name for field in fields(Tokens))
_TARGET_FIELDS = tuple(name for name in ARRAYS if name not in _TOKEN_FIELDS)
_ONE_A_LAUNCH = ("group", *_TARGET_FIELDS)

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Features, targets and groups of n launches; written in the types of ``ARRAYS``.

    Attributes:
        features: the launch features, shape (n, f).
        log2_ns: log2 of the measured medians in ns, shape (n,).
        offset_log2_ns: prediction that the model corrects, in log2 of ns, shape (n,); 0 without an
            offset.
        weight: weight of each launch in the loss, at least 0, shape (n,).
        is_validation: whether the launch is in the validation part and not fitted, shape (n,).
        family: code of each launch's family, shape (n,).
    """

    features: npt.NDArray[Any]
    log2_ns: npt.NDArray[Any]
    offset_log2_ns: npt.NDArray[Any]
    weight: npt.NDArray[Any]
    is_validation: npt.NDArray[Any]
    family: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStore:
    """An opened token cache: all arrays are read-only and mapped, of the types of ``ARRAYS``.

    Attributes:
        tokens: the n launches as token ids.
        targets: features, targets and groups of the same launches.
        facts: content of ``store.json``; ``facts["about"]`` holds the facts given by the writer.
    """

    tokens: Tokens
    targets: Targets
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> str:
        """Digest of the content of all arrays, from the hashes that the writer has recorded."""
        return content_id("tokens", self.facts["files"])

    @property
    def train_rows(self) -> npt.NDArray[np.int64]:
        """Indices of the launches to which the model is fitted, in the order of the arrays."""
        return np.flatnonzero(~self.targets.is_validation)

    @property
    def validation_rows(self) -> npt.NDArray[np.int64]:
        """Indices of the launches of the validation part, in the order of the arrays."""
        return np.flatnonzero(self.targets.is_validation)


def write_token_store(
    folder: Path, *, tokens: Tokens, targets: Targets, about: Mapping[str, Any] | None = None
) -> None:
    """Write a token cache; it appears at ``folder`` whole or not at all.

    Args:
        folder: new, or an older token cache, which is replaced.
        tokens: n launches.
        targets: features, targets and groups of the same n launches.
        about: facts about the origin of the cache, as JSON values; a reader compares these facts.

    Raises:
        ValueError: Tokens and targets disagree on n, or an array has a wrong shape.
        BadInput: ``folder`` exists and is not a token cache.
    """
    arrays = {name: getattr(tokens, name) for name in _TOKEN_FIELDS}
    arrays |= {name: getattr(targets, name) for name in _TARGET_FIELDS}
    _check_shapes(arrays)
    _check_places(arrays)
    if folder.exists() and not (folder / FACTS_FILE).is_file():
        raise BadInput(
            f"{folder}: exists and is not a token cache; remove it or name another folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    try:
        files = {name: _write_array(temporary, name, array) for name, array in arrays.items()}
        facts = {
            "schema": SCHEMA,
            "num_launches": len(tokens),
            "num_kernels": tokens.num_groups,
            "num_validation": int(np.count_nonzero(arrays["is_validation"])),
            "files": files,
            "about": dict(about or {}),
        }
        _write_facts(temporary / FACTS_FILE, facts)
        temporary.chmod(0o755)
        _sync_folder(temporary)
        _replace(temporary, folder)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def open_token_store(folder: Path, *, check_content: bool = False) -> TokenStore:
    """Open a token cache read-only.

    Args:
        folder: written by ``write_token_store``.
        check_content: compare the sha256 of each file, too: about a second for 500 MB.

    Raises:
        BadInput: ``folder`` is not a token cache or has another schema, or a file is missing,
            truncated or changed.
    """
    facts = _read_facts(folder)
    arrays = {
        name: _open_array(folder, name, facts["files"].get(name), check_content=check_content)
        for name in ARRAYS
    }
    try:
        _check_shapes(arrays)
        _check_places(arrays)
    except ValueError as error:
        raise _damaged(folder, str(error)) from None
    return TokenStore(
        tokens=Tokens(**{name: arrays[name] for name in _TOKEN_FIELDS}),
        targets=Targets(**{name: arrays[name] for name in _TARGET_FIELDS}),
        facts=facts,
    )


def _check_shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    num_launches = len(arrays["group"])
    for name, array in arrays.items():
        dimensions = 2 if name == "features" else 1
        if array.ndim != dimensions:
            raise ValueError(f"array {name!r} has {array.ndim} dimensions, not {dimensions}")
        if name in _ONE_A_LAUNCH and len(array) != num_launches:
            raise ValueError(
                f"array {name!r} has {len(array)} rows, but array 'group' has {num_launches}"
            )
    if len(arrays["suffix_start"]) != num_launches + 1:
        raise ValueError("array 'suffix_start' must have one entry more than there are launches")
    for start, ids in (("prefix_start", "prefix_ids"), ("suffix_start", "suffix_ids")):
        if len(arrays[start]) == 0 or arrays[start][-1] != len(arrays[ids]):
            raise ValueError(f"the last entry of array {start!r} is not the length of {ids!r}")
    if len(arrays["suffix_values"]) != len(arrays["suffix_ids"]):
        raise ValueError("arrays 'suffix_values' and 'suffix_ids' differ in length")


def _check_places(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise ValueError if a start or a group's number is wrong; token ids are not checked."""
    for name in ("prefix_start", "suffix_start"):
        starts = arrays[name]
        if starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise ValueError(f"array {name!r} does not ascend from 0")
    group, num_groups = arrays["group"], len(arrays["prefix_start"]) - 1
    if len(group) and not 0 <= group.min() <= group.max() < num_groups:
        raise ValueError(
            f"array 'group' has a value outside 0 to {num_groups - 1}, the numbers of the prefixes"
        )


def check_ids(store: TokenStore, folder: Path, *, vocabulary: int, num_slots: int) -> None:
    """Check that the model has an embedding row for each token.

    Without this check, a GPU would report an error that does not say which token is wrong.

    Args:
        store: read from ``folder``.
        folder: named in messages.
        vocabulary: number of the model's text tokens.
        num_slots: number of the model's slots for numeric tokens, which are negative ids.

    Raises:
        BadInput: A token is outside of both ranges.
    """
    for name, lowest in (("prefix_ids", 0), ("suffix_ids", -num_slots)):
        ids = getattr(store.tokens, name)
        for begin in range(0, len(ids), _CHUNK_BYTES):
            some = ids[begin : begin + _CHUNK_BYTES]
            if some.min() < lowest or some.max() >= vocabulary:
                raise _damaged(
                    folder, f"array {name!r} has a token that the tokenizer does not produce"
                )


def _write_array(folder: Path, name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    """Write one array in chunks of its rows; return its bytes and sha256."""
    path = folder / f"{name}.npy"
    kind = np.dtype(ARRAYS[name])
    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    with path.open("wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, len(array), rows):
            file.write(np.ascontiguousarray(array[begin : begin + rows], dtype=kind).data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _open_array(folder: Path, name: str, file: object, *, check_content: bool) -> npt.NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        check_plain(path, max_bytes=_MOST_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise _damaged(folder, f"{path.name}: {error.strerror}") from None
    except UnfitFileError as error:
        raise _damaged(folder, str(error)) from None
    if not isinstance(file, dict) or size != file.get("bytes"):
        raise _damaged(folder, f"{path.name} has {size:,} bytes, not as many as were written")
    if check_content and _sha256(path) != file.get("sha256"):
        raise _damaged(folder, f"{path.name} has another sha256 than was written")
    try:
        with np.errstate(over="raise"):  # for a shape of 2**60 numpy only warns of the overflow
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        # numpy's message advises to trust the file, which would run code of a foreign cache.
        raise _damaged(folder, f"{path.name} is not a plain array of numbers") from None
    except (OSError, ArithmeticError, MemoryError, RecursionError) as error:
        raise _damaged(folder, f"{path.name}: {error}") from None
    if array.dtype != ARRAYS[name]:
        raise _damaged(folder, f"{path.name} holds {array.dtype}, not {np.dtype(ARRAYS[name])}")
    return np.asarray(array)  # a plain view of the mapping: indexing an np.memmap is slower


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = read_json_value(folder / FACTS_FILE)
    except FileNotFoundError:
        raise BadInput(f"{folder}: no {FACTS_FILE}; this is not a token cache") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{FACTS_FILE}: {error}") from None
    schema = facts.get("schema") if isinstance(facts, dict) else None
    if schema != SCHEMA:
        raise BadInput(
            f"{folder}: a token cache of schema {schema}; this release reads schema {SCHEMA}: "
            "delete the folder and train again, which writes it anew"
        )
    if not isinstance(facts.get("files"), dict):
        raise _damaged(folder, f"{FACTS_FILE} lists no files")
    return dict(facts)


def _damaged(folder: Path, what: str) -> BadInput:
    return BadInput(
        f"{folder}: the token cache is damaged ({what}): delete the folder and train again, which "
        "writes it anew"
    )


def _write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(facts, indent=1, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _replace(temporary: Path, folder: Path) -> None:
    """Rename the new folder to its final name; an older folder is moved aside, then deleted."""
    old = None
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
        os.rename(folder, old / folder.name)
    os.rename(temporary, folder)
    _sync_folder(folder.parent)
    if old is not None:
        shutil.rmtree(old)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()

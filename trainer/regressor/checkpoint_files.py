"""Reading and writing of tensors in a Hugging Face folder.

Reads ``model.safetensors`` or its shards, else ``pytorch_model.bin`` or its shards. The latter are
pickles of an untrusted origin, so they are read with ``weights_only=True``, which runs no code.
This module knows no architecture and downloads nothing.
"""

from __future__ import annotations

import errno
import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llmperf_common.extras import require
from trainer.data.foreign_files import read_json_value
from trainer.errors import BadInput
from trainer.regressor.backbones.lora import ADAPTER_NAMES

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
BIN_FILE = "pytorch_model.bin"

MOST_HEADER_BYTES = 8 * 2**20
"""Maximum bytes of a safetensors header; a tensor takes about 100. The library would accept 100 MB
and would need 24 s and 2.8 GiB to parse them."""

_MOST_NAMED = 5
"""Maximum number of missing tensors that a message names."""

Rename = Callable[[str], str | None]
"""Maps a checkpoint's tensor name to ours; None for a tensor that is not needed."""

Convert = Callable[[str, torch.Tensor], torch.Tensor]
"""Maps our name and a checkpoint's tensor to our tensor, which has the same shape."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadInput: The file is missing or unreadable, or its value is not an object.
    """
    try:
        values = read_json_value(path)
    except FileNotFoundError:
        raise BadInput(f"{path.parent}: no {path.name}; this is not a model's folder") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path}: holds {type(values).__name__}, not an object")
    return values


def read_config(folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a Hugging Face folder.

    Raises:
        BadInput: There is no such folder, or it has no readable ``config.json``.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give one with {CONFIG_FILE} and weights")
    return read_json(folder / CONFIG_FILE)


def tensors_of(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of all weights in a folder, file by file.

    Raises:
        BadInput: There are no weights, a shard is missing, or a file is damaged.
    """
    for path in weight_files(folder):
        yield from tensors_in(path)


def tensors_in(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of all weights in one file, sorted by name.

    Raises:
        BadInput: The file is missing or damaged.
    """
    safetensors = require("safetensors", "train")
    if not path.is_file():
        raise BadInput(f"{path}: no such file; the checkpoint is incomplete")
    try:
        if path.suffix == ".safetensors":
            check_header(path)
            with safetensors.safe_open(path, framework="pt") as file:
                for name in sorted(file.keys()):
                    yield name, file.get_tensor(name)
        else:
            yield from _tensors_in_pickle(path)
    except BadInput:
        raise
    except (safetensors.SafetensorError, OSError, EOFError, RuntimeError, ValueError) as error:
        raise BadInput(f"{path}: damaged or truncated: {str(error)[:200]}") from None
    except (pickle.UnpicklingError, AttributeError, LookupError, TypeError) as error:
        raise BadInput(
            f"{path}: damaged, or holds more than plain tensors. LLMPerf reads no pickle that "
            f"could run code: save the weights as {SAFETENSORS_FILE}, on a machine where you trust "
            "the file"
        ) from error


def check_header(path: Path) -> None:
    """Check the length of a safetensors file's header.

    Raises:
        BadInput: The header has more than ``MOST_HEADER_BYTES``.
        OSError: The file cannot be opened.
    """
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
    if num_bytes > MOST_HEADER_BYTES:
        raise BadInput(
            f"{path}: damaged, or not a safetensors file: its header would have {num_bytes:,} "
            f"bytes, more than the {MOST_HEADER_BYTES:,} that are allowed"
        )


def stored_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes of data in some files, without the holes of sparse files.

    Missing files count as 0 bytes, and several links to one file count once. (The number of
    allocated blocks of a file would be wrong: it is small on a file system that compresses, and 0
    until a new file is written to the disk.)

    Raises:
        OSError: A file cannot be opened.
    """
    found = {}
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                num_bytes = _data_bytes(file.fileno(), facts.st_size)
                found[facts.st_dev, facts.st_ino] = num_bytes
    return sum(found.values())


def _data_bytes(descriptor: int, size: int) -> int:
    num_bytes, end = 0, 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: only a hole follows. Other errors: the file system does not know holes.
            return num_bytes if error.errno == errno.ENXIO else size
        num_bytes += end - begin
    return num_bytes


def _tensors_in_pickle(path: Path) -> list[tuple[str, torch.Tensor]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
        is_plain = all(one.compress_type == zipfile.ZIP_STORED for one in entries)
        if not is_plain or sum(one.file_size for one in entries) > path.stat().st_size:
            raise BadInput(f"{path}: is compressed; PyTorch writes no such file")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        kind = type(state).__name__ if not isinstance(state, dict) else "other keys"
        raise BadInput(f"{path}: holds {kind}, not tensors by name")
    return sorted((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def load_into(
    module: nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    where: Path,
    rename: Rename = lambda name: name,
    convert: Convert = lambda _name, tensor: tensor,
) -> None:
    """Copy a checkpoint's tensors into a module, in the module's types.

    Args:
        module: its weights and buffers are overwritten, except those of adapters.
        tensors: names and tensors of the checkpoint.
        where: the checkpoint, for messages.
        rename: maps names of the checkpoint to names of the module.
        convert: converts a tensor of the checkpoint to the module's layout.

    Raises:
        BadInput: A tensor is missing or unknown, has a wrong shape, is of a kind that cannot be
            copied without a loss, or has a value that is not finite.
    """
    targets = {
        name: tensor
        for name, tensor in module.state_dict().items()
        if name.rpartition(".")[2] not in ADAPTER_NAMES
    }
    weights = {name for name, _ in module.named_parameters()}
    found = set()
    for name, tensor in tensors:
        own = rename(name)
        if own is None:
            continue
        if own not in targets:
            raise BadInput(f"{where}: tensor {name} has no place in the model of its config")
        _check_kind(name, tensor, targets[own], where)
        if tensor.shape != targets[own].shape:
            raise BadInput(
                f"{where}: tensor {name} has shape {tuple(tensor.shape)}, "
                f"but its config says {tuple(targets[own].shape)}"
            )
        with torch.no_grad():
            targets[own].copy_(convert(own, tensor))
        if not _has_numbers(targets[own], is_weight=own in weights):
            raise BadInput(
                f"{where}: tensor {name} has a value that is not a finite number: copy the model "
                "again"
            )
        found.add(own)
    missing = sorted(targets.keys() - found)
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise BadInput(f"{where} lacks the tensors {', '.join(missing[:_MOST_NAMED])}{more}")


def _check_kind(name: str, tensor: torch.Tensor, target: torch.Tensor, where: Path) -> None:
    """Raise BadInput unless the tensor is a plain one, of numbers that the target can hold."""
    odd = {
        "without values": tensor.is_meta,
        "quantised": tensor.is_quantized,
        "sparse or nested": tensor.layout != torch.strided or tensor.is_nested,
    }
    if any(odd.values()):
        kind = next(kind for kind, is_so in odd.items() if is_so)
        raise BadInput(
            f"{where}: tensor {name} is {kind}; LLMPerf reads plain tensors: save the weights as "
            f"{SAFETENSORS_FILE}"
        )
    if tensor.is_complex() or tensor.is_floating_point() != target.is_floating_point():
        raise BadInput(
            f"{where}: tensor {name} is of type {tensor.dtype}, but its config says {target.dtype}"
        )


def _has_numbers(tensor: torch.Tensor, *, is_weight: bool) -> bool:
    """Return whether all values are finite; buffers, such as masks, may have infinite values.

    First the sum of all values is computed, in 2 % of the time of ``torch.isfinite``. If it is
    finite, all values are. If not, the values themselves are checked, because a sum of finite
    numbers can overflow.
    """
    if not tensor.is_floating_point() or bool(tensor.sum(dtype=torch.float32).isfinite()):
        return True
    return bool(tensor.isfinite().all() if is_weight else not tensor.isnan().any())


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors, sorted by name, to a safetensors file that ``transformers`` can read."""
    save_file = require("safetensors.torch", "train").save_file
    whole = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    save_file(whole, path, metadata={"format": "pt"})


def weight_files(folder: Path) -> list[Path]:
    """Return the files that ``tensors_of`` reads; a shard may be missing.

    Raises:
        BadInput: There are no weights, or the index of their shards is damaged.
    """
    for name in (SAFETENSORS_FILE, BIN_FILE):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = read_json(index).get("weight_map", {})
            if not isinstance(shards, dict) or not shards:
                raise BadInput(f"{index}: has no weight_map")
            if not all(isinstance(shard, str) and "\0" not in shard for shard in shards.values()):
                raise BadInput(f"{index}: its weight_map has values that are not file names")
            # Only the file name is used: an index must not point outside of the folder.
            return [folder / Path(shard).name for shard in sorted(set(shards.values()))]
    raise BadInput(
        f"{folder}: no {SAFETENSORS_FILE} and no {BIN_FILE}, nor an index of their shards"
    )

"""Saving and loading of a regressor: a Hugging Face folder with head and spec beside it.

::

    FOLDER/
      config.json  model.safetensors    the backbone, as transformers loads it (codegen, auto);
                                        backbone small has model.safetensors alone
      head.safetensors                  head (with means and scales) and numeric tokens
      regressor.json                    the spec

Low-rank adapters are merged into the saved weights. Writing is not atomic: a caller that must
survive a crash writes to a temporary folder and renames it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.errors import BadInput
from trainer.regressor.backbones.codegen import CodeGenBackbone, CodeGenShape
from trainer.regressor.backbones.hf_auto import AutoBackbone, check_reads_packs
from trainer.regressor.backbones.lora import merged
from trainer.regressor.batch import Device
from trainer.regressor.checkpoint_files import (
    CONFIG_FILE,
    SAFETENSORS_FILE,
    load_into,
    read_config,
    read_json,
    stored_bytes,
    tensors_in,
    tensors_of,
    weight_files,
    write_tensors,
)
from trainer.regressor.codegen_weights import our_name, to_our_layout, to_their_layout
from trainer.regressor.inference import Precision, set_precision
from trainer.regressor.model import Regressor, build_regressor, without_adapters
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import RegressorConfig

SPEC_FILE = "regressor.json"
HEAD_FILE = "head.safetensors"

_BACKBONE = "backbone."

_MOST_BESIDE = 2**28
"""Maximum number of values in a model's buffers (such as tables of positions); with large weights
as many values as the weights have bytes. No supported model has more."""


def read_backbone_config(folder: Path, config: RegressorConfig) -> dict[str, Any]:
    """Return a checkpoint's ``config.json`` for ``RegressorSpec.backbone``.

    Args:
        folder: a local Hugging Face folder.
        config: names the backbone.

    Raises:
        BadInput: There is no such folder or config, the config is of another architecture, or the
            backbone is small, which has no published checkpoint.
    """
    if config.backbone == "small":
        raise BadInput(
            "backbone small starts from scratch and takes no checkpoint: leave out --init, or set "
            "regressor.backbone"
        )
    values = read_config(folder)
    if config.backbone == "codegen":
        try:
            CodeGenShape.from_config(values)
        except BadInput as error:
            raise BadInput(f"{folder}: {error}") from None
    elif not values.get("model_type"):
        raise BadInput(f"{folder}: its {CONFIG_FILE} names no model_type")
    return values


def load_backbone(model: Regressor, folder: Path) -> None:
    """Copy a Hugging Face folder's weights into the backbone; head and adapters do not change.

    Raises:
        BadInput: A file is missing, damaged or truncated; a tensor is missing or unknown, or its
            shape differs from the spec's config; an auto backbone ignores the attention mask.
    """
    backbone = model.backbone
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give a model's folder")
    if isinstance(backbone, CodeGenBackbone):
        load_into(
            backbone, tensors_of(folder), where=folder, rename=our_name, convert=to_our_layout
        )
    elif isinstance(backbone, AutoBackbone):
        _load_auto(backbone, folder)
    else:
        load_into(backbone, tensors_of(folder), where=folder)


def build_pretrained(spec: RegressorSpec, folder: Path, *, seed: int) -> Regressor:
    """Build a regressor with the backbone's weights of a Hugging Face folder, and a random head.

    Args:
        spec: its ``backbone`` is the folder's config.
        folder: the checkpoint.
        seed: seed of all other weights.

    Raises:
        BadInput: The config describes more weights than the folder holds, or ``load_backbone``
            refuses the folder.
    """
    try:
        with torch.device("meta"):
            empty = build_regressor(without_adapters(spec))  # no file holds adapters
    except BadInput as error:
        raise BadInput(f"{folder}: {error}") from None
    _check_size(empty.backbone, folder, weight_files(folder))
    try:
        model = build_regressor(spec, seed=seed)  # with a trial, which needs weights
    except BadInput as error:
        raise BadInput(f"{folder}: {error}") from None
    load_backbone(model, folder)
    return model


def save_regressor(
    model: Regressor, folder: Path, state: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write a regressor; ``load_regressor`` reads it.

    Args:
        model: the regressor.
        folder: created if missing; files of the same names are replaced.
        state: the model's whole state dict; None takes ``model.state_dict()``. The caller must
            gather the weights of a sharded model (ZeRO-3).
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = merged(model.state_dict() if state is None else state)
    backbone = {
        name.removeprefix(_BACKBONE): tensor
        for name, tensor in whole.items()
        if name.startswith(_BACKBONE)
    }
    if isinstance(model.backbone, CodeGenBackbone):
        backbone = to_their_layout(backbone)
        _write_json(folder / CONFIG_FILE, _codegen_json(model.spec, backbone))
    elif isinstance(model.backbone, AutoBackbone):
        backbone = {name.removeprefix("model."): tensor for name, tensor in backbone.items()}
        model.backbone.model.config.architectures = [type(model.backbone.model).__name__]
        model.backbone.model.config.save_pretrained(folder)
    write_tensors(folder / SAFETENSORS_FILE, backbone)
    rest = {name: tensor for name, tensor in whole.items() if not name.startswith(_BACKBONE)}
    write_tensors(folder / HEAD_FILE, rest)
    _write_json(folder / SPEC_FILE, without_adapters(model.spec).to_json())


def load_regressor(
    folder: Path, device: Device = "cpu", precision: Precision = "fp32"
) -> Regressor:
    """Load what ``save_regressor`` wrote, in evaluation mode.

    Args:
        folder: the regressor's folder.
        device: device of the loaded model.
        precision: type of the backbone's weights; all other weights are float32.

    Raises:
        BadInput: There is no such folder, a file is missing or damaged, or a shape is wrong.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give a model's folder")
    model = _build_empty(RegressorSpec.from_json(read_json(folder / SPEC_FILE)), folder)
    load_backbone(model, folder)
    rest = nn.ModuleDict({"head": model.head})
    if model.numeric is not None:
        rest["numeric"] = model.numeric
    load_into(rest, tensors_in(folder / HEAD_FILE), where=folder / HEAD_FILE)
    set_precision(model, precision)
    return model.to(device).eval()


def _build_empty(spec: RegressorSpec, folder: Path) -> Regressor:
    """Build a regressor with uninitialised weights, because all of them are loaded next."""
    with torch.device("meta"):
        model = build_regressor(spec)
    _check_size(model, folder, [*weight_files(folder), folder / HEAD_FILE])
    if spec.config.backbone == "auto":
        return build_regressor(spec)  # models of transformers have buffers that no file holds
    return model.to_empty(device="cpu")


def _check_size(module: nn.Module, folder: Path, files: Sequence[Path]) -> None:
    """Raise BadInput if a config's module has more weights than the files read next can hold."""
    try:
        num_bytes = stored_bytes(files)
    except OSError as error:
        raise BadInput(f"{folder}: its weights cannot be read: {error}") from None
    num_weights = sum(one.numel() for one in module.parameters())
    if num_weights > num_bytes:
        raise BadInput(
            f"{folder}: its config describes {num_weights:,} weights, which the {num_bytes:,} bytes "
            "of data in the files of its weights cannot hold: copy the model again"
        )
    num_beside = sum(one.numel() for one in module.buffers())
    if num_beside > max(num_bytes, _MOST_BESIDE):
        raise BadInput(
            f"{folder}: its config describes buffers of {num_beside:,} numbers in addition to the "
            "weights; no supported model has so many: copy the model again"
        )


def _load_auto(backbone: AutoBackbone, folder: Path) -> None:
    """Load weights whose names are those of the base model, or of this model with a head."""
    inner = backbone.model
    wanted = set(inner.state_dict())
    prefix = f"{inner.base_model_prefix}."

    def rename(name: str) -> str | None:
        plain = name if name in wanted else name.removeprefix(prefix)
        # Other tensors belong to the checkpoint's own head, which is not used.
        return plain if plain in wanted else None

    load_into(inner, tensors_of(folder), where=folder, rename=rename)
    check_reads_packs(backbone)


def _codegen_json(spec: RegressorSpec, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    kept = {key: value for key, value in spec.backbone.items() if key != "dtype"}
    dtype = str(tensors["wte.weight"].dtype).removeprefix("torch.")
    return kept | {"architectures": ["CodeGenModel"], "torch_dtype": dtype}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""Names and shapes of a checkpoint's tensors, read from the headers of its files.

Owns the rule that each file of weights has a file of moments beside it, with two moments of the
same shape for each weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from trainer.errors import BadInput
from trainer.regressor.checkpoint_files import check_header

FIRST_MOMENT = ".exp_avg"
SECOND_MOMENT = ".exp_avg_sq"
_WEIGHTS, _MOMENTS = "weights-", "moments-"
_FLOAT32 = "F32"


def weights_name(number: int) -> str:
    """Return the name of a file of weights.

    >>> weights_name(2)
    'weights-00002.safetensors'
    """
    return f"{_WEIGHTS}{number:05d}.safetensors"


def moments_name(weights: str) -> str:
    """Return the name of the file with the moments of a file of weights.

    >>> moments_name("weights-00002.safetensors")
    'moments-00002.safetensors'
    """
    return weights.replace(_WEIGHTS, _MOMENTS, 1)


def weights_in(checkpoint: Path) -> list[Path]:
    """Return the files of weights in a checkpoint, by number."""
    return sorted(checkpoint.glob(f"{_WEIGHTS}*.safetensors"))


def check_weights(checkpoint: Path, wanted: Mapping[str, torch.Size]) -> None:
    """Check that a checkpoint has weights of these names and shapes, and no others.

    Raises:
        BadInput: The weights differ, or cannot be read.
    """
    there: dict[str, torch.Size] = {}
    for path in weights_in(checkpoint):
        try:
            there |= _shapes_in(path)
        except ValueError as error:
            raise BadInput(f"{checkpoint}: {error}") from None
    if not there:
        raise BadInput(f"{checkpoint}: no weights are there; copy the run again, or train it anew")
    for name in sorted(wanted.keys() | there.keys()):
        ours, theirs = wanted.get(name), there.get(name)
        if ours is None or theirs is None or ours != theirs:
            raise BadInput(
                f"{checkpoint} is of another model: {name} has shape "
                f"{_shown(theirs)} there and {_shown(ours)} here"
            )


def check_moments(checkpoint: Path) -> None:
    """Check that each weight of a checkpoint has its two moments, in the weight's shape.

    Raises:
        ValueError: A file is missing or cannot be read, a weight is in two files, or a moment is
            missing, unknown or of another shape.
    """
    names: set[str] = set()
    for path in weights_in(checkpoint):
        shapes = _shapes_in(path)
        twice = sorted(names & shapes.keys())
        if twice:
            raise ValueError(f"{twice[0][:80]} is in two files of weights")
        names |= shapes.keys()
        moments = _shapes_in(path.with_name(moments_name(path.name)))
        wanted = {
            name + moment: shape
            for name, shape in shapes.items()
            for moment in (FIRST_MOMENT, SECOND_MOMENT)
        }
        for name in sorted(wanted.keys() | moments.keys()):
            if wanted.get(name) != moments.get(name):
                raise ValueError(
                    f"{moments_name(path.name)} has {name[:80]} with shape "
                    f"{_shown(moments.get(name))}, not {_shown(wanted.get(name))}"
                )
    if not names:
        raise ValueError("it has no weights")


def _shapes_in(path: Path) -> dict[str, torch.Size]:
    """Return the shape of each tensor in a file. Raises ValueError."""
    try:
        check_header(path)
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            for name, tensor in found.items():
                if tensor.get_dtype() != _FLOAT32:
                    raise ValueError(f"{path.name}: {name[:80]} is not of type float32")
            return {name: torch.Size(tensor.get_shape()) for name, tensor in found.items()}
    except (BadInput, OSError, SafetensorError) as error:
        raise ValueError(f"{path.name} cannot be read ({error})") from None


def _shown(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(list(shape))

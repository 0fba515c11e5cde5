"""A fitted regressor as a ``Predictor``.

Owns the conversion of rows to batches in prediction: prompt, packs, offset. Launches of one kernel
share its prefix, so that a thousand configs cost little more than one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from llmperf_common.features.features import named_features, unknown_features
from trainer.data.foreign_files import read_json_value
from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.interface import Floats, Predicted, Predictor, Rows
from trainer.packing.batch import PackBatch, QueryBatch
from trainer.packing.prediction import pack_batches_for, query_batches_for
from trainer.prompt.encode import Encoded, Encoder
from trainer.registry import load_model
from trainer.regressor.batch import AnyBatch, to_torch, to_torch_query
from trainer.regressor.inference import predict as predict_batches
from trainer.regressor.inference import set_precision
from trainer.regressor.model import Regressor
from trainer.regressor.weights import load_regressor, save_regressor
from trainer.regressor_config import PackingConfig

Rows64 = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]
Float32s = npt.NDArray[np.float32]

NAME = "regressor"
PROMPT_FOLDER = "prompt"
OFFSET_FOLDER = "offset"
FACTS_FILE = "predictor.json"


@dataclass(slots=True)
class RegressorPredictor:
    """The fitted language model with its encoder and offset model.

    Attributes:
        model: the regressor, on the device that predicts.
        encoder: converts launches to tokens.
        packing: lengths of packs, and tokens of a forward pass.
        offset: predicts the offset that ``model`` corrects; None: it predicts the whole time.
        saved_in: folder with the exact weights. ``save`` copies it, because on a GPU the weights in
            memory may be rounded. None: ``save`` writes the weights in memory.
    """

    model: Regressor
    encoder: Encoder
    packing: PackingConfig
    offset: Predictor | None = None
    saved_in: Path | None = None
    name: str = NAME
    refits: bool = False

    def predict(self, rows: Rows) -> Predicted:
        """Return time and spread of each row; ``is_cut`` marks rows with a truncated prompt.

        Raises:
            BadInput: A kernel comes without its source.
        """
        if len(rows) == 0:
            return Predicted(log2_ns=np.zeros(0), spread=np.zeros(0))
        offset = np.zeros(len(rows)) if self.offset is None else self.offset.predict(rows).log2_ns
        features = named_features(rows.features, self.model.spec.feature_names).astype(np.float32)
        offset32 = offset.astype(np.float32)
        found, is_cut = np.empty((2, len(rows))), np.zeros(len(rows), dtype=bool)
        for encoded, index in self._encoded(rows):
            found[:, index] = self._answers(encoded.tokens, features[index], offset32[index])
            is_cut[index] = encoded.is_cut
        return Predicted(log2_ns=found[0], spread=found[1], is_cut=is_cut)

    def _encoded(self, rows: Rows) -> Iterator[tuple[Encoded, Places]]:
        """Yield tokens and positions: first of rows that training keeps, then of the other rows."""
        encoded = self.encoder.encode(rows)
        if len(encoded.kept):
            yield encoded, encoded.kept
        left = np.setdiff1d(np.arange(len(rows)), encoded.kept)
        if len(left):
            yield self.encoder.encode_all(rows.take(left)), left

    def _answers(self, tokens: Tokens, features: Float32s, offset: Float32s) -> Floats:
        """Return log2(ns) and spread of n launches, shape (2, n)."""
        order: list[Rows64] = []

        def batches() -> Iterator[AnyBatch]:
            for batch in self._batches(tokens):
                order.append(batch.row[batch.row >= 0])
                if isinstance(batch, PackBatch):
                    yield to_torch(batch, features, offset, self._device)
                else:
                    yield to_torch_query(batch, features, offset, self._device)

        answers = predict_batches(self.model, batches())
        found = np.empty((2, len(tokens)))
        found[:, np.concatenate(order)] = answers
        return found

    def _batches(self, tokens: Tokens) -> Iterator[PackBatch | QueryBatch]:
        """Yield the batches of the forward passes over all launches.

        A model whose ``takes_cache`` is true can cache a kernel's keys and values and read its
        launches with them. On a CPU it always does so, because with the dense mask the cost of a
        pack grows with the square of its length. On a GPU it does so for a single kernel only,
        because many small passes would leave the GPU idle.
        """
        rows = np.arange(len(tokens))
        cached = self.model.takes_cache and (tokens.num_groups == 1 or self._device.type == "cpu")
        if self.model.spec.config.reads == "query" or cached:
            yield from query_batches_for(tokens, rows, self.packing)
        else:
            yield from pack_batches_for(tokens, rows, self.packing)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder, with the head, the prompt and the offset model beside it."""
        if self.saved_in is not None:
            shutil.copytree(self.saved_in, folder, dirs_exist_ok=True)
            return
        save_regressor(self.model, folder)
        (folder / PROMPT_FOLDER).mkdir(exist_ok=True)
        self.encoder.save(folder / PROMPT_FOLDER)
        self.encoder.tokenizer.save(folder)  # transformers expects the tokenizer here
        offset = None if self.offset is None else self.offset.name
        if self.offset is not None:
            (folder / OFFSET_FOLDER).mkdir(exist_ok=True)
            self.offset.save(folder / OFFSET_FOLDER)
        facts = {"schema": 1, "packing": self.packing.model_dump(mode="json"), "offset": offset}
        (folder / FACTS_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def read_back(self, folder: Path) -> Self:
        """Save the model to ``folder`` and load it again, so that it predicts as users' models do.

        On a GPU the loaded model may differ from the fitted one, because ``load`` rounds weights.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.save(folder)
        return replace(type(self).load(folder), saved_in=folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote, onto a GPU if there is one.

        Raises:
            BadInput: A file is missing or damaged.
        """
        try:
            facts = read_json_value(folder / FACTS_FILE)
            packing = PackingConfig.from_mapping(facts["packing"])
            offset = facts["offset"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{folder / FACTS_FILE}: {error}") from None
        model = load_regressor(folder)
        lost = unknown_features(model.spec.feature_names)
        if lost:
            raise BadInput(
                f"{folder}: the model needs the feature {lost[0]!r:.60}, which this release does "
                "not compute: train the model again"
            )
        if torch.cuda.is_available():
            if model.spec.config.backbone != "small":  # backbone small is fast enough in float32
                set_precision(model, "bf16")
            model = model.to("cuda")
        return cls(
            model=model,
            encoder=Encoder.load(folder / PROMPT_FOLDER),
            packing=packing,
            offset=None if offset is None else load_model(offset, folder / OFFSET_FOLDER),
        )

"""``train --init`` of folders whose config.json asks for what their weights do not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llmperf.exits import Exit
from tests.support.factories.dataset_factory import make_dataset
from tests.support.factories.pack_factory import CODEGEN, QWEN2
from tests.support.in_process import assert_refused, llmperf

pytest.importorskip("transformers")

SHORT = ("train.device=cpu", "prompt.max_tokens=1024", "packing.lengths=[1024]")
WIDE = {"hidden_size": 16384, "intermediate_size": 16384, "max_position_embeddings": 2048}
ASKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "wide": ("auto", QWEN2 | WIDE, "weights, which the 80 bytes of data in the files of its weights"),
    "codegen": ("codegen", CODEGEN | {"n_embd": 16384}, "weights, which the 80 bytes of data"),
    "deep": ("auto", QWEN2 | {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000: at most"),
    "fraction": ("auto", QWEN2 | {"num_hidden_layers": 2.0}, "correct its config.json, or choose"),
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data"), kernels=14, kernels_per_shard=7)


def checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """Write a checkpoint whose tensors have 16 bytes, with a tokenizer of ASCII characters."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 97}))
    save_file({"a": torch.zeros(4)}, folder / "model.safetensors")
    characters = {chr(code): number for number, code in enumerate([10, *range(32, 127)])}
    bpe = {"type": "BPE", "vocab": {**characters, "[UNK]": 96}, "merges": [], "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": bpe}))
    return folder


@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", ASKS)
def test_a_checkpoint_that_asks_for_too_much(data: Path, tmp_path: Path, name: str) -> None:
    backbone, config, words = ASKS[name]
    init, out = checkpoint(tmp_path / "init", config), tmp_path / "out"
    overrides = [f"--set={one}" for one in (*SHORT, f"regressor.backbone={backbone}")]
    command = ("train", "--data", data, "--preset", "codegen-350m", "--out", out, "--init", init)
    assert_refused(llmperf(*command, *overrides), Exit.BAD_INPUT, words, f"{init}: ")
    assert not out.exists()

"""A config.json may not ask for more blocks, experts or weights than its checkpoint can hold."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.factories.pack_factory import QWEN2, make_spec
from tests.support.own_memory import peak_bytes
from trainer.errors import BadInput
from trainer.regressor.backbones import hf_limits
from trainer.regressor.backbones.hf_auto import AutoBackbone
from trainer.regressor.backbones.hf_limits import check_counts, limited_tensors
from trainer.regressor.weights import build_pretrained, load_regressor

transformers = pytest.importorskip("transformers")

MANY = 1_000_000
LARGE = QWEN2 | {"hidden_size": 16384, "intermediate_size": 16384}

REPEATED: dict[str, dict[str, Any]] = {
    "bart": {"model_type": "bart", "d_model": 16, "decoder_layers": MANY},
    "mixtral": {**QWEN2, "model_type": "mixtral", "num_local_experts": MANY},
    "t5": {"model_type": "t5", "d_model": 16, "num_decoder_layers": MANY},
    "swin": {"model_type": "swin", "depths": [2, 2, MANY, 2]},
    "swin, many stages": {"model_type": "swin", "depths": [1] * MANY},
    "vision": {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": MANY}},
    "text": {"model_type": "llava", "text_config": {**QWEN2, "num_hidden_layers": MANY}},
    "xlstm": {"model_type": "xlstm", "num_blocks": MANY},
    "float": {**QWEN2, "num_hidden_layers": 1e300},
    "negative": {**QWEN2, "num_hidden_layers": -MANY},
    "nan": {**QWEN2, "num_hidden_layers": float("nan")},
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", REPEATED)
def test_a_config_that_repeats_a_part_too_often(name: str) -> None:
    with pytest.raises(BadInput, match=r"(is|has) .*: at most (1,000|16,384) are allowed"):
        AutoBackbone(REPEATED[name])


@pytest.mark.parametrize("kind", ["qwen2", "starcoder2", "mixtral", "codegen", "gemma3n_text"])
def test_configs_of_published_architectures_are_allowed(kind: str) -> None:
    check_counts(transformers.AutoConfig.for_model(kind).to_dict())


@pytest.mark.parametrize("kind", ["deepseek_v3", "kimi_k25", "longcat_flash", "doge", "qwen3_next"])
def test_configs_of_many_experts_are_allowed(kind: str) -> None:
    try:
        config = transformers.AutoConfig.for_model(kind)
    except ValueError:
        pytest.skip(f"this version of transformers does not know {kind}")
    check_counts(config.to_dict())


@pytest.mark.parametrize(
    "name",
    ["tokens_per_block", "intermediate_size_per_layer", "sliding_window_per_layer", "tokens_per_expert",
     "embed_dim_per_stage", "window_size_per_stage", "num_attention_heads_per_layer"],
)  # fmt: skip
def test_a_size_of_a_part_is_no_number_of_parts(name: str) -> None:
    check_counts({name: 32_768, "text_config": {name: [32_768] * 100}})
    with pytest.raises(ValueError, match="has 20,000 entries: at most"):
        check_counts({name: [1] * 20_000})


@pytest.mark.parametrize(
    "name",
    ["num_layers_per_stack", "blocks_per_stage", "num_blocks_per_group", "num_self_attends_per_block",
     "experts_per_layer", "n_experts"],
)  # fmt: skip
def test_a_number_of_parts_in_another_part_is_limited(name: str) -> None:
    with pytest.raises(ValueError, match="is 32768: at most"):
        check_counts({name: 32_768})


@pytest.mark.parametrize(
    "name", ["chunk_size", "mamba_chunk_size", "lsh_attn_chunk_length", "attention_window"]
)
def test_a_length_to_which_texts_are_padded_is_limited(name: str) -> None:
    check_counts({name: 512, "sliding_window": 131_072, "attention_chunk_size": 8_192})
    with pytest.raises(ValueError, match="is 8000: at most 1,024"):
        check_counts({"text_config": {name: 8_000}})


@pytest.mark.timeout(20)
def test_labels_of_a_head_that_is_not_built_take_no_memory() -> None:
    assert AutoBackbone({**QWEN2, "num_labels": 10**8}).width == QWEN2["hidden_size"]


def test_a_model_of_many_tensors_is_refused_while_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hf_limits, "_MOST_TENSORS", 25)  # a layer of QWEN2 has 12
    with pytest.raises(BadInput, match="asks for more than the 25 weight tensors"):
        AutoBackbone(QWEN2)
    assert len(list(nn.Linear(2, 2).parameters())) == 2, "the limit holds only while it is built"
    with limited_tensors(), ThreadPoolExecutor(1) as pool:
        [nn.Linear(2, 2) for _ in range(12)]
        others = [pool.submit(nn.Linear, 2, 2) for _ in range(12)]
        assert [one.exception() for one in others] == [None] * 12, "each thread has its own limit"


def test_a_decoder_of_61_blocks_with_384_experts_is_allowed() -> None:
    assert hf_limits._MOST_TENSORS > 61 * (384 * 3 + 20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_hidden_layers": 2.0},
        {"num_hidden_layers": "2"},
        {"hidden_size": [32]},
        {"hidden_size": -32},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"layer_types": [5]},
        {"hidden_act": "no such function"},
    ],
    ids=str,
)
def test_a_config_with_a_wrong_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        BadInput, match=r"^(transformers cannot build model_type|Qwen2Model cannot)"
    ):
        AutoBackbone({**QWEN2, **wrong})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of 16 bytes of weights."""
    save_file({"a": torch.zeros(4)}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.timeout(60)
def test_a_checkpoint_without_the_weights_of_its_config(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.unit.trainer.regressor.test_hostile_configs import refused\n"
        "refused(Path(sys.argv[1]))"
    )
    assert peak_bytes(code, folder) < 1.2 * 2**30  # the weights would take more than 4


def refused(folder: Path) -> None:
    spec = make_spec("auto", LARGE)
    with pytest.raises(BadInput, match=r"its config describes [\d,]+ weights, which the [\d,]+ b"):
        build_pretrained(spec, folder, seed=0)


def test_a_saved_regressor_is_limited_too(folder: Path) -> None:
    own = {**QWEN2, "num_hidden_layers": MANY}
    (folder / "regressor.json").write_text(json.dumps(make_spec("auto", own).to_json()))
    with pytest.raises(BadInput, match="num_hidden_layers is 1000000: at most 1,000"):
        load_regressor(folder)


def test_adapters_are_in_no_checkpoint(folder: Path) -> None:
    model = AutoBackbone(QWEN2).model
    model.save_pretrained(folder)
    spec = make_spec("auto", QWEN2, lora_rank=16)
    built = build_pretrained(spec, folder, seed=0)
    assert torch.equal(built.backbone.embed(torch.arange(3)), model.embed_tokens.weight[:3])


GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 97,
    "vocab_size_per_layer_input": 97,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"global_head_dim": 32}, "head_dim"),
        ({"hidden_size_per_layer_input": 8}, "inputs_embeds"),
    ],
    ids=["heads of two sizes", "embeddings per layer"],
)
def test_a_model_that_fails_only_in_training_is_refused_before(
    change: dict[str, Any], says: str
) -> None:
    if "gemma4_text" not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip("this version of transformers does not know gemma4_text")
    assert AutoBackbone(GEMMA4).width == 32
    words = "Gemma4TextModel cannot .*: LLMPerf does not support this architecture, because"
    with pytest.raises(BadInput, match=f"{words} .*{says}"):
        AutoBackbone(GEMMA4 | change)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
def test_a_model_without_recomputed_activations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.Qwen2Model, "supports_gradient_checkpointing", False)
    with pytest.raises(BadInput, match=r"^Qwen2Model cannot be used: LLMPerf does not support"):
        AutoBackbone(QWEN2, checkpointing=True)

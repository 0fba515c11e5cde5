"""Weights in and out of Hugging Face folders: parity with transformers, and every bad folder."""

from __future__ import annotations

import json
import resource
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.factories.pack_factory import (
    CODEGEN,
    QWEN2,
    STARCODER2,
    make_kernels,
    make_model,
    make_packs,
    make_queries,
    make_spec,
    packed_rows,
)
from trainer.errors import BadInput
from trainer.regressor import weights
from trainer.regressor.backbones.codegen import CODEGEN_350M, codegen_config
from trainer.regressor.backbones.hf_auto import AutoBackbone, check_reads_packs
from trainer.regressor.backbones.small import SmallBackbone
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor.weights import (
    load_backbone,
    load_regressor,
    read_backbone_config,
    save_regressor,
)

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def published(config: dict[str, Any], seed: int = 3) -> Any:
    """transformers' own model with random weights, none of them a special value."""
    torch.manual_seed(seed)
    values = {key: value for key, value in config.items() if key != "architectures"}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**values)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif config["n_embd" if "n_embd" in config else "hidden_size"] < 1024:
                weight.mul_(4)  # a tiny model's 0.02 would leave attention nearly uniform
    return model


def hidden_states(model: Regressor, ids: torch.Tensor) -> torch.Tensor:
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    position = torch.arange(length)[None].expand(len(ids), -1)
    with torch.no_grad():
        return model.backbone(model.backbone.embed(ids), position, causal)


def codegen_spec(config: dict[str, Any]) -> RegressorSpec:
    return make_spec("codegen", config)


def assert_parity(folder: Path, config: dict[str, Any], length: int) -> None:
    theirs = published(config)
    theirs.save_pretrained(folder)
    spec = codegen_spec(read_backbone_config(folder, make_spec("codegen").config))
    ours = build_regressor(spec)
    load_backbone(ours, folder)
    ids = torch.randint(config["vocab_size"], (2, length))
    with torch.no_grad():
        expected = theirs(input_ids=ids).last_hidden_state
    assert expected.std() > 0.1
    assert (hidden_states(ours, ids) - expected).abs().max() <= 1e-4
    save_regressor(ours, folder / "again")
    again = transformers.AutoModel.from_pretrained(folder / "again").eval()
    assert type(again).__name__ == "CodeGenModel"
    original, rewritten = theirs.state_dict(), again.state_dict()
    assert original.keys() == rewritten.keys()
    for name, tensor in original.items():
        assert torch.equal(tensor, rewritten[name]), name


@pytest.mark.parametrize(
    ("width", "depth", "heads", "rotary_dims"),
    [(256, 4, 8, 16), (96, 2, 12, 8), (32, 1, 4, 8), (80, 2, 20, 4)],
)
def test_codegen_parity(tmp_path: Path, width: int, depth: int, heads: int, rotary_dims: int):
    config = codegen_config(
        width=width, depth=depth, heads=heads, rotary_dims=rotary_dims, vocabulary=300
    )
    assert_parity(tmp_path, config, 150)


@pytest.mark.slow
def test_codegen_parity_at_the_shape_of_350m(tmp_path: Path):
    assert_parity(tmp_path, CODEGEN_350M, 64)


def save_tiny(folder: Path, config: dict[str, Any] = CODEGEN, *, head: bool = False) -> Any:
    model = published(config)
    if head:
        whole = transformers.AutoModelForCausalLM.from_config(model.config)
        whole.base_model.load_state_dict(model.state_dict())
        whole.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    return model


def as_bin(folder: Path) -> Path:
    state = load_file(folder / "model.safetensors")
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


@pytest.mark.parametrize("config", [CODEGEN, STARCODER2, QWEN2], ids=["codegen", "sc2", "qwen2"])
@pytest.mark.parametrize("form", ["base", "with head", "bin", "shards", "bin shards"])
def test_every_form_of_a_checkpoint_loads(tmp_path: Path, config: dict[str, Any], form: str):
    theirs = save_tiny(tmp_path, config, head=form == "with head")
    if form == "bin":
        as_bin(tmp_path)
    elif form in {"shards", "bin shards"}:
        state = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        stem, end = ("model", "safetensors") if form == "shards" else ("pytorch_model", "bin")
        shards: list[dict[str, torch.Tensor]] = [{}, {}]
        for place, name in enumerate(sorted(state)):
            shards[place % 2][name] = state[name]
        where = {}
        for number, shard in enumerate(shards):
            name = f"{stem}-{number + 1:05d}-of-00002.{end}"
            where |= dict.fromkeys(shard, name)
            save = save_file if form == "shards" else torch.save
            save(shard, tmp_path / name)
        (tmp_path / f"{stem}.{end}.index.json").write_text(json.dumps({"weight_map": where}))
    backbone = "codegen" if config is CODEGEN else "auto"
    spec = make_spec(backbone, read_backbone_config(tmp_path, make_spec(backbone).config))
    ours = build_regressor(spec)
    load_backbone(ours, tmp_path)
    ids = torch.randint(60, (2, 30))
    with torch.no_grad():
        expected = theirs(input_ids=ids).last_hidden_state
    assert (hidden_states(ours.eval(), ids) - expected).abs().max() <= 1e-4


def test_a_compressed_pickle_is_refused_unread(tmp_path: Path) -> None:
    """28 MB of it became 6.5 GiB."""
    save_tiny(tmp_path)
    packed = as_bin(tmp_path)
    with zipfile.ZipFile(packed) as plain:
        content = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as again:
        for name, data in content.items():
            again.writestr(name, data)
    spec = make_spec("codegen", read_backbone_config(tmp_path, make_spec("codegen").config))
    with pytest.raises(BadInput, match="is compressed"):
        load_backbone(build_regressor(spec), tmp_path)


KINDS = {
    "small": make_spec("small"),
    "query": make_spec("small", reads="query"),
    "softplus": make_spec("small", head="softplus", slots=0),
    "codegen": make_spec("codegen"),
    "codegen, adapters": make_spec("codegen", lora_rank=2),
    "auto": make_spec("auto", STARCODER2),
    "auto, adapters": make_spec("auto", QWEN2, lora_rank=2),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
def test_a_saved_regressor_predicts_the_same(tmp_path: Path, spec: RegressorSpec):
    model = make_model(spec).eval()
    rng = np.random.default_rng(1)
    model.head.fit_features(rng.normal(3, 2, (50, 5)))
    model.head.fit_target(rng.normal(12, 3, 50))
    save_regressor(model, tmp_path / "model")
    loaded = load_regressor(tmp_path / "model")
    assert loaded.spec.config.lora_rank == 0
    assert not loaded.training
    kernels = make_kernels([(9, (3, 4)), (5, (2,))], spec.num_slots)
    make = make_queries if spec.config.reads == "query" else (lambda k: make_packs([k], 32))
    with torch.no_grad():
        before, after = packed_rows(model, make(kernels)), packed_rows(loaded, make(kernels))
    tolerance = 1e-4 if spec.config.lora_rank else 0
    assert (before - after).abs().max() <= tolerance
    half = load_regressor(tmp_path / "model", precision="bf16")
    with torch.no_grad():
        assert 0 < (packed_rows(half, make(kernels)) - after).abs().max() < 2
    save_regressor(loaded, tmp_path / "again")
    for path in sorted((tmp_path / "again").iterdir()):
        assert path.read_bytes() == (tmp_path / "model" / path.name).read_bytes(), path.name
    assert not list(tmp_path.rglob("*.bin"))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("config", [CODEGEN, QWEN2], ids=["codegen", "qwen2"])
def test_a_checkpoint_in_half_precision_is_fitted_in_float32(
    tmp_path: Path, config: dict[str, Any], key: str
):
    theirs = save_tiny(tmp_path, config)
    state = {name: tensor.half() for name, tensor in theirs.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((tmp_path / "config.json").read_text()) | {key: "float16"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    backbone = "codegen" if config is CODEGEN else "auto"
    spec = make_spec(backbone, read_backbone_config(tmp_path, make_spec(backbone).config))
    ours = build_regressor(spec)
    load_backbone(ours, tmp_path)
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
    save_regressor(ours, tmp_path / "again")
    again = transformers.AutoModel.from_pretrained(tmp_path / "again")
    assert again.dtype == torch.float32
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, state[name].float()), name


def test_our_auto_folder_loads_in_transformers(tmp_path: Path):
    model = make_model(KINDS["auto"]).eval()
    save_regressor(model, tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(60, (2, 30))
    with torch.no_grad():
        theirs = again(input_ids=ids).last_hidden_state
    assert (hidden_states(model, ids) - theirs).abs().max() <= 1e-5


def load_codegen(folder: Path) -> Regressor:
    model = build_regressor(codegen_spec(read_backbone_config(folder, make_spec("codegen").config)))
    load_backbone(model, folder)
    return model


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(BadInput, match="no such folder"):
        load_codegen(tmp_path / "none")
    with pytest.raises(BadInput, match="no such folder"):
        load_regressor(tmp_path / "none")
    with pytest.raises(BadInput, match=r"no config\.json"):
        load_codegen(tmp_path)
    with pytest.raises(BadInput, match=r"no regressor\.json"):
        load_regressor(tmp_path)


def test_another_architecture(tmp_path: Path):
    save_tiny(tmp_path, QWEN2)
    with pytest.raises(BadInput, match=r"model_type is 'qwen2'.*regressor.backbone = 'auto'"):
        load_codegen(tmp_path)


def test_a_folder_without_weights(tmp_path: Path):
    save_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"no model\.safetensors and no pytorch_model\.bin"):
        load_codegen(tmp_path)


def test_a_wrong_shape_names_tensor_and_both_shapes(tmp_path: Path):
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 77}))
    with pytest.raises(BadInput, match=r"wte\.weight has shape \(60, 32\).*\(77, 32\)"):
        load_codegen(tmp_path)


def test_another_depth(tmp_path: Path):
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(BadInput, match=r"lacks the tensors blocks\.2\..* and \d+ more"):
        load_codegen(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 1}))
    with pytest.raises(BadInput, match=r"h\.1\.\S+ has no place"):
        load_codegen(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.99])
def test_a_truncated_file(tmp_path: Path, form: str, keep: float):
    save_tiny(tmp_path)
    path = as_bin(tmp_path) if form == "bin" else tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(BadInput, match=f"{path.name}: damaged"):
        load_codegen(tmp_path)


def tensor(**other: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **other}


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


ABSURD: dict[str, tuple[Callable[[], bytes], int | None]] = {
    "a header of 2^60 bytes": (lambda: header(a=tensor()), 2**60),
    "a header of 2^64 - 1 bytes": (lambda: header(a=tensor()), 2**64 - 1),
    "an offset below 0": (lambda: header(a=tensor(data_offsets=[-8, 0])), None),
    "overlapping": (lambda: header(a=tensor(), b=tensor(data_offsets=[4, 12])), None),
    "an end before its beginning": (lambda: header(a=tensor(data_offsets=[8, 0])), None),
    "an end beyond the file": (
        lambda: header(a=tensor(shape=[2**38], data_offsets=[0, 2**40])),
        None,
    ),
    "a type that is none": (lambda: header(a=tensor(dtype="F31")), None),
    "a shape that overflows": (lambda: header(a=tensor(shape=[2**40, 2**40])), None),
    "nested": (lambda: b'{"a":' + b"[" * 2_000_000, None),
    "40 MB of tensors": (
        lambda: header(**{f"{n:09}": tensor(shape=[0], data_offsets=[0, 0]) for n in range(600_000)}),
        None,
    ),
    "100 MB of a shape": (
        lambda: header(a=tensor(shape="SHAPE")).replace(b'"SHAPE"', b"[" + b"0," * 49_000_000 + b"0]"),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.slow if " MB" in one else ()) for one in ABSURD],
)
def test_an_absurd_header_is_refused_at_once(tmp_path: Path, name: str):
    save_tiny(tmp_path)
    make, says = ABSURD[name]
    made = make()
    length = len(made) if says is None else says
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + made + bytes(12))
    began_s, before = time.process_time(), peak_bytes()
    with pytest.raises(BadInput, match=r"model\.safetensors: damaged"):
        load_codegen(tmp_path)
    assert time.process_time() - began_s < 2
    assert peak_bytes() - before < 2**28


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("owned"),))


def test_a_pickle_that_runs_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path)
    torch.save({"wte.weight": Evil()}, as_bin(tmp_path))
    with pytest.raises(
        BadInput,
        match=r"reads no pickle that could run code: save the weights as model\.safetensors",
    ):
        load_codegen(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_a_bin_that_holds_no_tensors(tmp_path: Path):
    save_tiny(tmp_path)
    torch.save([1, 2], as_bin(tmp_path))
    with pytest.raises(BadInput, match="holds list, not tensors by name"):
        load_codegen(tmp_path)


def test_a_missing_shard(tmp_path: Path):
    save_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"wte.weight": "../../elsewhere/model-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=rf"{tmp_path}/model-00001\.safetensors: no such file"):
        load_codegen(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_head": 6}, "n_head = 6 must be a multiple of 4"),
        ({"rotary_dim": 64}, "rotary_dim = 64 must be even"),
        ({"activation_function": "relu"}, "relu"),
        ({"n_embd": "wide"}, "ValueError"),
        ({"rotary_dim": None}, "TypeError"),
    ],
)
def test_a_config_that_cannot_be(tmp_path: Path, change: dict[str, Any], message: str):
    (tmp_path / "config.json").write_text(json.dumps(CODEGEN | change))
    with pytest.raises(BadInput, match=message):
        load_codegen(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json"):
        load_codegen(tmp_path)


@pytest.mark.parametrize(("backbone", "own"), [("codegen", CODEGEN), ("auto", QWEN2)])
def test_vocabulary_and_context_must_fit(backbone: str, own: dict[str, Any]):
    rows, context = (
        "vocab_size",
        "n_positions" if backbone == "codegen" else "max_position_embeddings",
    )
    with pytest.raises(BadInput, match="produces 50 tokens, but the checkpoint's embedding has 40"):
        build_regressor(make_spec(backbone, own | {rows: 40}))
    with pytest.raises(BadInput, match="reads at most 100 tokens"):
        build_regressor(make_spec(backbone, own | {context: 100}))


BLOOM = {"model_type": "bloom", "vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4}
T5 = {
    "model_type": "t5",
    "vocab_size": 60,
    "d_model": 32,
    "num_layers": 1,
    "num_heads": 4,
    "d_ff": 64,
}
MAMBA = {"model_type": "mamba", "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1}


@pytest.mark.parametrize("config", [BLOOM, MAMBA, T5], ids=["bloom", "mamba", "t5"])
def test_an_architecture_that_cannot_read_packs_is_refused(config: dict[str, Any]):
    with pytest.raises(BadInput, match="Model cannot read packs"):
        AutoBackbone(config)


class Deaf(SmallBackbone):
    """A decoder that ignores part of what it is given, as some architectures do."""

    ignores = "mask"

    def forward(self, embeddings, position, mask, at=None):
        length = embeddings.shape[1]
        if self.ignores == "mask":
            mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        else:
            position = torch.arange(length)[None]
        return super().forward(embeddings, position, mask, at)


@pytest.mark.parametrize("ignored", ["mask", "position"])
def test_a_model_that_ignores_mask_or_positions_is_refused(
    ignored: str, monkeypatch: pytest.MonkeyPatch
):
    backbone = Deaf(vocabulary=20, width=16, depth=2, heads=2)
    monkeypatch.setattr(backbone, "ignores", ignored)
    with pytest.raises(BadInput, match="Deaf ignores the attention mask or the position ids"):
        check_reads_packs(backbone)
    check_reads_packs(SmallBackbone(vocabulary=20, width=16, depth=2, heads=2))


def test_an_architecture_without_token_embedding_is_refused():
    with pytest.raises(BadInput, match=r"has no token embedding|cannot build model_type"):
        AutoBackbone(
            {
                "model_type": "vit",
                "num_hidden_layers": 1,
                "hidden_size": 24,
                "num_attention_heads": 2,
            }
        )


@pytest.mark.parametrize("kind", [None, "no-such-model"])
def test_an_architecture_unknown_to_transformers(kind: str | None):
    with pytest.raises(BadInput, match="transformers cannot build model_type"):
        AutoBackbone({"model_type": kind})


@pytest.mark.parametrize(
    "named",
    [
        {"attn_implementation": "someone/repository"},
        {"_attn_implementation": "someone/repository@main:function"},
        {"attn_implementation": {"": "someone/repository"}},
        {"auto_map": {"AutoModel": "someone/repository--modeling.Model"}},
        {"experts_implementation": "someone/repository"},
        {"attribute_map": {"zz": "_attn_implementation_internal"}, "zz": "someone/repository"},
    ],
    ids=str,
)
def test_code_that_a_config_names_is_not_asked_for(named: dict[str, Any]) -> None:
    """``transformers`` fetches and runs such a repository where the package ``kernels`` is installed."""
    shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 60, "n_positions": 64}
    backbone = AutoBackbone({"model_type": "gpt2", **shape, **named})
    assert backbone.model.config._attn_implementation in ("eager", "sdpa")


def test_weights_of_others_that_a_config_names_are_not_asked_for() -> None:
    with pytest.raises(BadInput) as refused:
        AutoBackbone(
            {
                "model_type": "dpt",
                "backbone": "/someone/model",
                "use_pretrained_backbone": True,
                "backbone_config": {"model_type": "resnet", "backbone": "/someone/model"},
            }
        )
    assert "someone" not in str(refused.value)


def test_a_depth_that_no_model_has_is_refused_before_it_is_built() -> None:
    with pytest.raises(BadInput, match="n_layer is 1000000000: at most 1,000"):
        AutoBackbone({**BLOOM, "n_layer": 10**9})


def test_tables_that_no_model_has_are_refused(tmp_path: Path) -> None:
    """Buffers of an ``auto`` backbone lie in no file, so that only their number bounds them."""
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    model = torch.nn.Module()
    model.register_buffer("positions", torch.empty(2**28 + 1, device="meta"))
    with pytest.raises(BadInput, match="describes buffers of 268,435,457 numbers"):
        weights._check_size(model, tmp_path, [tmp_path / "model.safetensors"])
    model.register_buffer("positions", torch.empty(2**28, device="meta"))
    weights._check_size(model, tmp_path, [tmp_path / "model.safetensors"])

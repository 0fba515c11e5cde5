"""The regressor on a real NVIDIA GPU: FlexAttention and compiled blocks equal the dense mask, in few compilations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.factories.pack_factory import (
    CODEGEN,
    as_batch,
    make_kernels,
    make_model,
    make_packs,
    make_spec,
)
from trainer.regressor.backbones.codegen import codegen_config
from trainer.regressor.inference import predict, set_precision
from trainer.regressor.model import Regressor
from trainer.regressor.spec import RegressorSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
    # What torch's compiler and vmap warn of while they trace differs from release to release, and an error
    # raised there ends the compilation.
    pytest.mark.filterwarnings("default"),
]

WIDE = codegen_config(width=160, depth=3, heads=4, rotary_dims=16, vocabulary=60)
SPECS = {
    "small": make_spec("small", width=64, heads=2),
    "small, checkpointing": make_spec("small", width=64, heads=2, activation_checkpointing=True),
    "codegen": make_spec("codegen", CODEGEN | {"n_embd": 128}),
    "codegen, heads of 40": make_spec("codegen", WIDE),
    "auto": make_spec("auto"),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def batches(length: int = 256) -> list:
    kernels = make_kernels([(60, (9,) * 6), (40, (8,) * 5), (100, (3, 7, 20))])
    packs = [
        make_packs([kernels[:2], kernels[2:]], length),
        make_packs([kernels[1:], kernels[:1]], length),
    ]
    return [as_batch(pack).to("cuda") for pack in packs]


def gradients(model: Regressor, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    output = model(batch)
    ((output.log2_ns + output.spread) * batch.present).sum().backward()
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_block_masks_equal_dense_ones(spec: RegressorSpec, compiled: bool):
    model = make_model(spec).to("cuda").train()
    model.attention = "dense"
    dense = [(model(batch), gradients(model, batch)) for batch in batches()]
    model.attention = "auto"
    if compiled:
        model.compile_blocks()
    for batch, (output, expected) in zip(batches(), dense, strict=True):
        got = model(batch)
        assert (got.log2_ns - output.log2_ns)[batch.present].abs().max() <= 5e-5
        grads = gradients(model, batch)
        for name, grad in expected.items():
            assert (grads[name] - grad).norm() <= 1e-4 * grad.norm() + 1e-6, name


def test_compilations_do_not_exceed_the_lengths():
    model = make_model(SPECS["codegen"]).to("cuda").train()
    model.compile_blocks()
    for _ in range(3):
        for length in (256, 384):
            for batch in batches(length):
                gradients(model, batch)
    # One for the block and one for the mask's construction, a length each.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2 * 2


@pytest.mark.parametrize("name", ["small", "codegen", "auto"])
def test_bfloat16_predicts_nearly_the_same(name: str):
    model = make_model(SPECS[name]).to("cuda")
    exact, _ = predict(model, batches())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        under_autocast, _ = predict(model, batches())
    set_precision(model, "bf16")
    cast, _ = predict(model, batches())
    for got in (under_autocast, cast):
        assert 0 < abs(got - exact).max() < 0.5 * exact.std()

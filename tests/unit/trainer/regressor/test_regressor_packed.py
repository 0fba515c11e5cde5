"""Packed predictions and gradients equal those of each launch read alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories.pack_factory import (
    QWEN2,
    SLOTS,
    STARCODER2,
    alone,
    as_batch,
    launches_of,
    make_kernels,
    make_model,
    make_packs,
    make_queries,
    make_spec,
    packed_rows,
)
from trainer.regressor.attention import block_mask, dense_mask
from trainer.regressor.model import Regressor
from trainer.regressor.spec import RegressorSpec

MODELS: dict[str, Regressor] = {}

SHAPES = [(11, (3, 5, 1)), (4, (6,)), (17, (2, 2, 7, 4)), (1, (1, 2))]

SPECS = {
    "small": make_spec("small"),
    "small, text tokens, no features": make_spec("small", slots=0, features=False),
    "small, softplus": make_spec("small", head="softplus"),
    "small, checkpointing": make_spec("small", activation_checkpointing=True),
    "codegen": make_spec("codegen"),
    "codegen, adapters": make_spec("codegen", lora_rank=3),
    "starcoder2": make_spec("auto", STARCODER2),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def two_packs(spec: RegressorSpec):
    kernels = make_kernels(SHAPES, spec.num_slots)
    return kernels, make_packs([kernels[:2], kernels[2:]], 48)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_packed_equals_unpacked_in_float64(spec: RegressorSpec):
    model = make_model(spec).double().train()
    kernels, batch = two_packs(spec)
    expected = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
    got = packed_rows(model, batch)
    assert expected[:, 0].std() > 0.1
    assert (got - expected).abs().max() <= 1e-10


LAYOUTS = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(1, 8), min_size=1, max_size=5)),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("backbone", ["small", "codegen"])
@settings(max_examples=12)
@given(shapes=LAYOUTS, first=st.integers(1, 5), padding=st.integers(0, 9))
def test_any_layout_equals_unpacked(
    backbone: str, shapes: list[tuple[int, list[int]]], first: int, padding: int
):
    spec = make_spec(backbone)
    model = MODELS.setdefault(backbone, make_model(spec).double().eval())
    kernels = make_kernels(shapes)
    packs = [pack for pack in (kernels[:first], kernels[first:]) if pack]
    length = max(sum(p + sum(s) for p, s in half) for half in (shapes[:first], shapes[first:]))
    with torch.no_grad():
        got = packed_rows(model, make_packs(packs, length + padding))
        expected = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
    assert (got - expected).abs().max() <= 1e-10


def test_packed_equals_unpacked_for_a_model_that_norms_in_float32():
    # Qwen2's RMSNorm rounds to float32 whatever the weights are, so 1e-10 is out of its reach.
    spec = make_spec("auto", QWEN2)
    model = make_model(spec).double()
    kernels, batch = two_packs(spec)
    expected = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
    assert (packed_rows(model, batch) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("backbone", ["small", "codegen"])
def test_float32_difference_is_the_noise_of_batching(backbone: str):
    spec = make_spec(backbone)
    model = make_model(spec)
    kernels = make_kernels([(40, (5,) * 12), (30, (6,) * 10)])
    with torch.no_grad():
        single = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
        truth = torch.stack([alone(model.double(), *pair) for pair in launches_of(kernels)])
        model.float()
        packs = packed_rows(model, make_packs([kernels], 192))
        unshared = [
            [dataclasses.replace(kernel, launches=(launch,))]
            for kernel, launch in launches_of(kernels)
        ]
        batched = packed_rows(model, make_packs(unshared, 48))
    noise = max((batched - single).abs().max(), (single - truth).abs().max())
    assert (packs - single).abs().max() <= 2 * noise


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_gradients_of_packs_equal_those_of_each_launch_alone(spec: RegressorSpec):
    model = make_model(spec).double().train()
    kernels, batch = two_packs(spec)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def gradients(rows: torch.Tensor) -> dict[str, torch.Tensor]:
        factor = torch.linspace(0.5, 2, rows.numel(), dtype=torch.float64).view(rows.shape)
        loss = (rows * factor).pow(2).sum() / 1e3
        grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        return {
            name: torch.zeros_like(weights[name]) if grad is None else grad
            for name, grad in zip(weights, grads, strict=True)
        }

    packed = gradients(packed_rows(model, batch))
    single = gradients(torch.stack([alone(model, *pair) for pair in launches_of(kernels)]))
    assert max(grad.abs().max() for grad in single.values()) > 1e-3
    for name, grad in single.items():
        assert (packed[name] - grad).abs().max() <= 1e-9 * max(1, grad.abs().max()), name


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_suffix_changes_no_other_output(spec: RegressorSpec):
    model = make_model(spec).eval()
    kernels, batch = two_packs(spec)
    with torch.no_grad():
        before = packed_rows(model, batch)
        changed = kernels[0].launches[1]
        changed = dataclasses.replace(changed, ids=tuple(7 for _ in changed.ids))
        other = dataclasses.replace(
            kernels[0], launches=(kernels[0].launches[0], changed, kernels[0].launches[2])
        )
        after = packed_rows(model, make_packs([[other, kernels[1]], kernels[2:]], 48))
    same = np.arange(len(before)) != changed.row
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[changed.row], after[changed.row])


def test_bfloat16_blocks_answer_in_float32():
    model = make_model(make_spec("small")).eval()
    _, batch = two_packs(model.spec)
    expected = packed_rows(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = packed_rows(model, batch)
    model.bfloat16()
    cast = packed_rows(model, batch)
    for got in (under_autocast, cast):
        assert got.dtype == torch.float32
        assert 0 < (got - expected).abs().max() < 0.5


def test_block_mask_follows_the_same_rule():
    _, batch = two_packs(make_spec())
    tensors = as_batch(batch)
    dense = dense_mask(tensors.kernel, tensors.suffix)
    blocks = block_mask(tensors.kernel, tensors.suffix, compiled=False)
    index = [torch.arange(n) for n in (2, 48, 48)]
    b, q, k = torch.meshgrid(*index, indexing="ij")
    assert torch.equal(blocks.mask_mod(b, torch.zeros_like(b), q, k), dense[:, 0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backbone", ["small", "codegen"])
def test_compiled_blocks_with_a_block_mask_equal_eager_ones_with_a_dense_mask(backbone: str):
    model = make_model(make_spec(backbone)).eval()
    kernels = make_kernels([(60, (9,) * 6), (40, (8,) * 5)])
    tensors = as_batch(make_packs([kernels, kernels[:1]], 256))
    masks = (
        dense_mask(tensors.kernel, tensors.suffix),
        block_mask(tensors.kernel, tensors.suffix, compiled=False),
    )
    torch._dynamo.reset()
    with torch.no_grad():
        embeddings = model._embed(tensors.ids, tensors.numbers)
        dense = model.backbone(embeddings, tensors.position, masks[0], tensors.query)
        model.compile_blocks()
        compiled = model.backbone(embeddings, tensors.position, masks[1], tensors.query)
    torch._dynamo.reset()
    assert (dense - compiled)[tensors.present].abs().max() <= 1e-5


def test_dense_mask_is_the_rule_in_words():
    _, batch = two_packs(make_spec())
    tensors = as_batch(batch)
    dense = dense_mask(tensors.kernel, tensors.suffix)[:, 0].numpy()
    for b in range(2):
        for q in range(48):
            for k in range(48):
                if batch.kernel[b, q] < 0:
                    allowed = q == k
                else:
                    allowed = k <= q and batch.kernel[b, q] == batch.kernel[b, k]
                    allowed &= batch.suffix[b, k] in (0, batch.suffix[b, q])
                assert dense[b, q, k] == allowed


QUERY_SPEC = make_spec("small", reads="query")


def test_queries_do_not_depend_on_padding_or_company():
    model = make_model(QUERY_SPEC).double().eval()
    kernels = make_kernels(SHAPES)
    rows = packed_rows(model, make_queries(kernels))
    padded = packed_rows(model, make_queries(kernels, extra=3))
    single = torch.cat([packed_rows(model, make_queries([kernel])) for kernel in kernels])
    assert rows[:, 0].std() > 0.1
    assert (rows - padded).abs().max() <= 1e-10
    assert (rows - single).abs().max() <= 1e-10


def test_padding_of_queries_has_finite_gradients():
    model = make_model(QUERY_SPEC).train()
    packed_rows(model, make_queries(make_kernels(SHAPES), extra=3)).sum().backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)


def test_a_query_reads_prefix_and_sizes():
    model = make_model(QUERY_SPEC).eval()
    kernels = make_kernels([(9, (4, 4))])
    before = packed_rows(model, make_queries(kernels))
    first, second = kernels[0].launches
    other = dataclasses.replace(first, ids=(-1, -2, -3, -4), values=(1.0, 2.0, 3.0, 4.0))
    changed = dataclasses.replace(kernels[0], launches=(other, second))
    after = packed_rows(model, make_queries([changed]))
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])
    renamed = dataclasses.replace(kernels[0], prefix=tuple(reversed(kernels[0].prefix)))
    assert not torch.equal(before[1], packed_rows(model, make_queries([renamed]))[1])


def test_a_batch_of_the_other_reading_is_refused():
    kernels = make_kernels(SHAPES[:1], SLOTS)
    with pytest.raises(TypeError, match="SmallBackbone does not read TorchQueryBatch"):
        make_model(make_spec())(as_batch(make_queries(kernels)))

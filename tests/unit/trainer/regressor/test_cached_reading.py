"""A prefix read once: what its suffixes then say equals each launch read alone, whatever the chunks and the company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.factories.pack_factory import (
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
from trainer.regressor import cached_reading

SHAPES = [(11, (3, 5, 1)), (4, (6,)), (1, (2, 2, 7, 4)), (17, (1, 2))]
SPECS = {
    "small": make_spec("small"),
    "small, text tokens": make_spec("small", slots=0),
    "codegen": make_spec("codegen"),
    "codegen, adapters": make_spec("codegen", lora_rank=3),
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_reading, "CHUNK_TOKENS", 16)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.usefixtures("small_chunks")
def test_a_kept_prefix_changes_nothing_in_float64(spec, extra: int):
    model = make_model(spec).double().eval()
    kernels = make_kernels(SHAPES, spec.num_slots)
    expected = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
    got = packed_rows(model, make_queries(kernels, extra=extra))
    assert expected[:, 0].std() > 0.1
    assert (got - expected).abs().max() <= 1e-10


@pytest.mark.usefixtures("small_chunks")
def test_in_float32_it_is_as_close_as_packs_are():
    model = make_model(make_spec("codegen")).eval()
    kernels = make_kernels(SHAPES)
    expected = torch.stack([alone(model, *pair) for pair in launches_of(kernels)])
    packed = packed_rows(model, make_packs([kernels[:2], kernels[2:]], 48))
    cached = packed_rows(model, make_queries(kernels))
    noise = (packed - expected).abs().max()
    assert (cached - expected).abs().max() <= 2 * noise + 1e-6


def test_sixteen_bits_are_attended_in_wider_ones():
    model = make_model(make_spec("codegen")).eval()
    kernels = make_kernels(SHAPES)
    expected = packed_rows(model, make_queries(kernels))
    model.backbone.bfloat16()
    got = packed_rows(model, make_queries(kernels))
    assert 0 < (got - expected).abs().max() < 0.1


def test_a_foreign_attention_refuses_the_cache():
    model = make_model(make_spec("auto", STARCODER2))
    assert not model.takes_cache
    with pytest.raises(TypeError, match="does not read TorchQueryBatch"):
        model(as_batch(make_queries(make_kernels(SHAPES))))

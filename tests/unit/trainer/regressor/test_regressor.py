"""The regressor's parts: numeric tokens, head, adapters, groups, counts, spec, predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.support.factories.pack_factory import (
    CODEGEN,
    SLOTS,
    as_batch,
    launches_of,
    make_kernels,
    make_model,
    make_packs,
    make_queries,
    make_spec,
    make_tables,
    packed_rows,
)
from trainer.errors import BadInput
from trainer.regressor.attention import dense_mask
from trainer.regressor.backbones.codegen import CODEGEN_2B, CODEGEN_350M
from trainer.regressor.backbones.lora import adapt, merged
from trainer.regressor.batch import NOT_AN_INTEGER, split_numbers
from trainer.regressor.flops import (
    PackCount,
    count_packs,
    forward_flops,
    query_flops,
    training_passes,
)
from trainer.regressor.head import Head, SoftplusHead
from trainer.regressor.inference import predict
from trainer.regressor.model import build_regressor
from trainer.regressor.numeric import NumericEmbedding
from trainer.regressor.parameter_groups import parameter_groups
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import OptimiserConfig

SHAPES = [(11, (3, 5, 1)), (4, (6,)), (17, (2, 2, 7, 4))]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("value", [0, 1, 31, 32, 2**31 - 1, 2**31 + 5, 2**40 + 1, 2**53 - 1, -3])
def test_remainders_are_exact(value: int):
    numbers = split_numbers(np.array([[float(value)]]))
    assert numbers.remainder_32.item() == value % 32
    assert numbers.remainder_128.item() == value % 128
    assert numbers.sign.item() == (2 if value < 0 else int(value > 0))
    assert numbers.log2.item() == pytest.approx(np.log2(1 + abs(value)), rel=1e-6)


def test_numbers_that_are_no_integers():
    numbers = split_numbers(np.array([0.5, -1e-3, np.nan, np.inf, -np.inf]))
    assert numbers.remainder_32.tolist()[:3] == [NOT_AN_INTEGER, NOT_AN_INTEGER, 0]
    assert numbers.log2.isfinite().all()
    assert numbers.sign.tolist() == [1, 2, 0, 1, 2]


def test_numeric_embedding_tells_values_slots_and_signs_apart():
    embedding = NumericEmbedding(SLOTS, 16)
    values = np.unique(np.concatenate((np.arange(300), np.floor(2 ** np.linspace(9, 50, 300)))))
    with torch.no_grad():
        embedded = embedding(torch.zeros(len(values), dtype=torch.int64), split_numbers(values))
        apart = torch.cdist(embedded, embedded) + torch.eye(len(values)) * 9
        assert apart.min() > 1e-3
        slots = embedding(torch.arange(SLOTS), split_numbers(np.full(SLOTS, 7.0)))
        signs = embedding(
            torch.zeros(3, dtype=torch.int64), split_numbers(np.array([-7.0, 7, 7.5]))
        )
    assert (torch.cdist(slots, slots) + torch.eye(SLOTS)).min() > 0.1
    assert (torch.cdist(signs, signs) + torch.eye(3)).min() > 0.1


def test_numeric_embedding_is_smooth_in_log2():
    embedding = NumericEmbedding(1, 16)
    with torch.no_grad():
        near, other, far = embedding(
            torch.zeros(3, dtype=torch.int64),
            split_numbers(np.array([1e6 + 0.5, 1.01e6 + 0.5, 9e6 + 0.5])),
        )
    assert (near - other).norm() < 0.3 * (near - far).norm()


def test_first_prediction_is_offset_plus_centre():
    model = build_regressor(make_spec())
    _, offset = make_tables(1000)
    model.head.fit_target(np.array([2.0, 4.0, 6.0]))
    batch = make_packs([make_kernels(SHAPES)], 64)
    log2_ns, spread = predict(model, [as_batch(batch)])
    assert log2_ns == pytest.approx(offset[batch.row[batch.row >= 0]] + 4, rel=1e-6)
    assert spread == pytest.approx(np.std([2, 4, 6]), rel=1e-6)


def test_spread_is_positive_and_finite_whatever_comes():
    head = Head(width=8, num_features=2, hidden=8)
    with torch.no_grad():
        head.output.weight.normal_(std=100)
    extreme = torch.tensor([[[1e30, -1e30], [float("nan"), 0.0], [float("inf"), 5.0]]])
    state = torch.randn(1, 3, 8) * 1e3
    log2_ns, spread = head(state, extreme, torch.zeros(1, 3))
    assert log2_ns.isfinite().all()
    assert (spread > 0).all()
    assert spread.isfinite().all()


def test_features_are_standardised_clipped_and_their_absence_is_told():
    head = Head(width=8, num_features=4, hidden=8)
    rng = np.random.default_rng(0)
    table = rng.normal(5, 3, (400, 4))
    table[:, 1], table[:, 2], table[::2, 3] = 7.0, np.nan, np.nan
    head.fit_features(table)
    rows = torch.tensor([[5.0, 7.0, np.nan, np.nan], [1e9, 8.0, 3.0, 5.0]], dtype=torch.float32)
    got = head.standardised(rows[None])[0]
    assert got[0] == pytest.approx([0, 0, 0, 0, 0, 0, 1, 1], abs=0.2)
    assert got[1] == pytest.approx([6, 1, 3, 0, 0, 0, 0, 0], abs=0.3)
    assert head.feature_mean.isfinite().all()


def test_missing_features_change_the_answer():
    model = make_model(make_spec()).eval()
    batch = as_batch(make_packs([make_kernels(SHAPES)], 64))
    with torch.no_grad():
        before = model(batch).log2_ns
        batch.features.nan_to_num_(0.0)
        after = model(batch).log2_ns
    assert before.isfinite().all()
    assert not torch.equal(before, after)


def test_weights_of_the_target_count():
    head = Head(width=8, num_features=0, hidden=8)
    head.fit_target(np.array([0.0, 10.0]), np.array([3.0, 1.0]))
    assert head.centre.item() == pytest.approx(2.5)


def test_the_papers_head_reads_neither_features_nor_offset():
    head = SoftplusHead(width=8)
    nn.init.normal_(head.output.weight)
    state = torch.randn(1, 50, 8) * 10
    none = torch.zeros(1, 50, 0)
    log2_ns, spread = head(state, none, torch.full((1, 50), 9.0))
    assert torch.equal(log2_ns, head(state, none, torch.zeros(1, 50))[0])
    assert log2_ns.min() >= np.log2(1000) - 1e-5
    assert (spread > 0).all()


def test_the_papers_spread_moves_nothing_but_itself():
    head = SoftplusHead(width=4)
    nn.init.normal_(head.output.weight)
    state = torch.randn(1, 2, 4, requires_grad=True)
    _, spread = head(state, torch.zeros(1, 2, 0), torch.zeros(1, 2))
    (of_state, of_weight) = torch.autograd.grad(
        spread.sum(), (state, head.output.weight), allow_unused=True
    )
    assert of_state is None
    assert (of_weight[0] == 0).all()
    assert (of_weight[1] != 0).all()


@pytest.mark.parametrize("backbone", ["small", "codegen"])
def test_adapters_change_nothing_at_first_and_merge(backbone: str):
    plain, adapted = (
        build_regressor(make_spec(backbone)),
        build_regressor(make_spec(backbone, lora_rank=3)),
    )
    embeddings = torch.randn(2, 9, plain.backbone.width)
    place = torch.arange(9)[None].expand(2, -1)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        assert torch.equal(*(m.backbone(embeddings, place, mask) for m in (plain, adapted)))
        for name, weight in adapted.named_parameters():
            if name.endswith("lora_b"):
                weight.normal_()
        changed = adapted.backbone(embeddings, place, mask)
        state = merged(adapted.backbone.state_dict())
        assert state.keys() == plain.backbone.state_dict().keys()
        assert (changed - plain.backbone(embeddings, place, mask)).abs().max() > 0.01
        plain.backbone.load_state_dict(state)
        assert (changed - plain.backbone(embeddings, place, mask)).abs().max() < 1e-4


def test_only_adapters_and_what_is_new_is_fitted():
    model = build_regressor(make_spec("codegen", lora_rank=3))
    fitted = {name for name, weight in model.named_parameters() if weight.requires_grad}
    inside = {name for name in fitted if name.startswith("backbone.")}
    assert inside
    assert all(name.endswith(("lora_a", "lora_b")) for name in inside)
    assert {name.split(".")[0] for name in fitted - inside} == {"numeric", "head"}


def test_adapters_need_a_linear_layer():
    with pytest.raises(BadInput, match="no linear layer"):
        adapt(nn.Sequential(nn.Embedding(3, 4)), 2)


@pytest.mark.parametrize(
    "spec", [make_spec(), make_spec("codegen", lora_rank=2)], ids=["small", "lora"]
)
def test_every_fitted_weight_is_in_one_group(spec: RegressorSpec):
    model = build_regressor(spec)
    config = OptimiserConfig(learning_rate=1e-3, backbone_learning_rate=1e-5, weight_decay=0.1)
    groups = {group["name"]: group for group in parameter_groups(model, config)}
    grouped = [id(weight) for group in groups.values() for weight in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(weight) for weight in model.parameters() if weight.requires_grad}
    for name, group in groups.items():
        assert group["lr"] == (1e-5 if name.startswith("backbone.") else 1e-3)
        assert group["weight_decay"] == (0.1 if name.endswith(".decay") else 0.0)
        if name.endswith(".decay"):
            assert all(weight.ndim == 2 for weight in group["params"])
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    assert not tables & {
        id(w) for n, g in groups.items() if n.endswith(".decay") for w in g["params"]
    }
    same_rate = parameter_groups(model, OptimiserConfig(learning_rate=1e-3))
    assert {group["lr"] for group in same_rate} == {1e-3}


def test_counts_agree_with_the_mask():
    kernels = make_kernels(SHAPES)
    batch = make_packs([kernels[:1], kernels[1:]], 60)
    tensors = as_batch(batch)
    mask = dense_mask(tensors.kernel, tensors.suffix)[:, 0].numpy()
    real = batch.kernel >= 0
    count = count_packs(batch)
    assert count.tokens == real.sum()
    assert count.pairs == mask[real].sum()
    assert count.launches == len(list(launches_of(kernels)))


@pytest.mark.parametrize(
    ("own", "depth", "width"), [(CODEGEN_350M, 20, 1024), (CODEGEN_2B, 32, 2560)]
)
def test_flops_of_codegen(own: dict[str, object], depth: int, width: int):
    count = PackCount(tokens=1000, pairs=250_000, launches=16)
    expected = depth * (24 * width**2 * 1000 + 4 * width * 250_000)
    assert forward_flops(make_spec("codegen", own), count) == expected


def test_flops_of_small_and_of_what_is_not_counted():
    count = PackCount(tokens=10, pairs=55, launches=1)
    assert forward_flops(make_spec(), count) == 2 * (24 * 16**2 * 10 + 4 * 16 * 55)
    for spec in (make_spec("auto"), make_spec(reads="query")):
        with pytest.raises(ValueError, match="no count"):
            forward_flops(spec, count)


def test_flops_of_queries_are_those_that_torch_counts():
    # One kernel and no padding, so that torch does what must be done and no more.
    spec = make_spec(reads="query")
    model = make_model(spec)
    batch = make_queries(make_kernels([(6, (4, 4, 4))]))
    assert (batch.prefix_length == batch.prefix_ids.shape[1]).all()
    assert (batch.suffix_length == batch.suffix_ids.shape[2]).all()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.backbone(
            torch.zeros(1, 6, 16),
            torch.ones(1, 6, dtype=torch.bool),
            torch.zeros(1, 3, 4, 16),
            torch.ones(1, 3, 4, dtype=torch.bool),
        )
    of_pairs = 4 * 16 * 2 * (6 * 6 + 3 * 6)  # torch does not count attention on a CPU
    assert query_flops(spec, batch) == counter.get_total_flops() + of_pairs
    with pytest.raises(ValueError, match="no queries"):
        query_flops(make_spec(), batch)


def test_adapters_cost_two_passes():
    assert training_passes(make_spec()) == 3
    assert training_passes(make_spec(lora_rank=2)) == 2


@pytest.mark.parametrize("spec", [make_spec(), make_spec("codegen"), make_spec("auto")])
def test_spec_round_trip(spec: RegressorSpec):
    assert RegressorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, but this version reads format 1"),
        ({"vocabulary": None}, "vocabulary is None"),
        ({"config": {"width": 1}}, "width"),
    ],
)
def test_a_spec_that_cannot_be_read(change: dict[str, object], message: str):
    with pytest.raises(BadInput, match=message):
        RegressorSpec.from_json(make_spec().to_json() | change)


def test_a_seed_gives_one_model_and_leaves_torchs_generator():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again = (build_regressor(make_spec(), seed=3).state_dict() for _ in range(2))
    other = build_regressor(make_spec(), seed=4).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["backbone.embedding.weight"], other["backbone.embedding.weight"])


def test_names_of_the_weights_are_stable():
    blocks = (
        "norm.weight",
        "norm.bias",
        "qkv.weight",
        "out.weight",
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
    )
    names = [
        "backbone.embedding.weight",
        *(f"backbone.blocks.{i}.{name}" for i in (0, 1) for name in blocks),
    ]
    names += ["backbone.norm.weight", "backbone.norm.bias"]
    names += [
        f"numeric.{name}.weight"
        for name in ("slot", "sign", "remainder_32", "remainder_128", "log2")
    ]
    names += [
        "numeric.log2.bias",
        "head.feature_mean",
        "head.feature_scale",
        "head.centre",
        "head.scale",
    ]
    layers = ["from_state", "from_features", "norm", "output"]
    layers += [f"blocks.{i}.{layer}" for i in (0, 1) for layer in ("norm", "up", "down")]
    names += [f"head.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert sorted(build_regressor(make_spec("codegen")).state_dict()) == sorted(names)


def test_predictions_come_in_the_order_of_the_rows():
    model = make_model(make_spec())
    kernels = make_kernels(SHAPES)
    batches = [make_packs([kernels[2:]], 40), make_packs([kernels[:1], kernels[1:2]], 32)]
    model.train()
    log2_ns, spread = predict(model, (as_batch(batch) for batch in batches))
    assert model.training
    rows = np.concatenate([batch.row[batch.row >= 0] for batch in batches])
    with torch.no_grad():
        expected = torch.cat([packed_rows(model.eval(), batch) for batch in batches[::-1]]).numpy()
    assert log2_ns == pytest.approx(expected[rows, 0], abs=1e-5)
    assert spread == pytest.approx(expected[rows, 1], abs=1e-5)
    empty, _ = predict(model, [])
    assert empty.shape == (0,)


def test_predictions_of_queries():
    model = make_model(make_spec(reads="query"))
    batch = make_queries(make_kernels(SHAPES), extra=1)
    log2_ns, spread = predict(model, [as_batch(batch)])
    assert log2_ns.shape == spread.shape == (8,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 18, "heads": 4}, "multiple of twice regressor.heads"),
        ({"reads": "query", "backbone": "codegen"}, "regressor.reads = 'query'"),
        ({"reads": "query", "width": 18, "heads": 4}, "multiple of twice"),
    ],
)
def test_a_model_that_cannot_be_built(changes: dict[str, object], message: str):
    with pytest.raises(BadInput, match=message):
        build_regressor(make_spec(**changes))


def test_blocks_share_their_compilations():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = make_model(make_spec("codegen", CODEGEN | {"n_layer": 6})).eval()
    kernels = make_kernels(SHAPES)
    names = list(model.state_dict())
    batches = [make_packs([kernels], length) for length in (64, 96)]
    with torch.no_grad():
        expected = [packed_rows(model, batch) for batch in batches]
        model.backbone.compile_blocks("eager")
        got = [packed_rows(model, batch) for batch in batches for _ in range(2)]
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(got[::2], expected, strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(batches)
    assert list(model.state_dict()) == names
    torch._dynamo.reset()

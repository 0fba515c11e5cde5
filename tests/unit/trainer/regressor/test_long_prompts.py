"""Launches whose prompt is longer than the context: every row is answered, as its own, and the cut ones are named."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from llmperf.prediction.analysing import Analyst
from llmperf.prediction.model import Model
from llmperf_common.features.features import feature_names
from tests.support.factories.synthetic_dataset import make_dataset
from tests.unit.trainer.life.test_language_model import config, run
from tests.unit.trainer.prompt.test_prompt_encode import FORMS, all_rows, encoder
from trainer.data.dataset import TrainingData
from trainer.evaluation.evaluate import evaluate
from trainer.interface import Rows
from trainer.life.summary import RunSummary
from trainer.prompt.numeric import NUM_SLOTS
from trainer.prompt.prompt_statistics import context_needed
from trainer.regressor.model import build_regressor
from trainer.regressor.predictor import RegressorPredictor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import PackingConfig, RegressorConfig
from trainer.run.loaded import load_run


def rows() -> Rows:
    """Rows 3 to 5 are of the long kernel."""
    found = all_rows()
    features = np.random.default_rng(3).normal(size=(len(found), len(feature_names())))
    return dataclasses.replace(found, features=features)


def predictor(form: str, reads: str = "packed", **changes) -> RegressorPredictor:
    made = encoder(form, **changes)
    spec = RegressorSpec(
        config=RegressorConfig(width=32, depth=1, heads=2, head_width=16, reads=reads),
        vocabulary=made.tokenizer.num_tokens,
        num_slots=NUM_SLOTS if form == "numeric" else 0,
        feature_names=feature_names(),
        context=made.config.max_tokens,
    )
    model = build_regressor(spec).eval()
    model.head.output.weight.data.normal_(generator=None)
    packing = PackingConfig(lengths=(1024, 16384), tokens_per_pass=16384)
    return RegressorPredictor(model=model, encoder=made, packing=packing)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("too_long", ["truncate", "drop"])
@pytest.mark.parametrize("max_tokens", [420, 32])
def test_each_row_gets_its_own_answer_whatever_is_too_long(form, too_long, max_tokens):
    model = predictor(form, max_tokens=max_tokens, too_long=too_long)
    together = model.predict(rows())
    assert np.isfinite(together.log2_ns).all()
    for row in range(len(rows())):
        alone = model.predict(rows().take(np.array([row])))
        assert together.log2_ns[row] == pytest.approx(alone.log2_ns[0], abs=1e-4), row


@pytest.mark.parametrize("reads", ["packed", "query"])
def test_rows_whose_source_was_cut_say_so(reads):
    said = predictor("numeric", reads, max_tokens=420).predict(rows())
    assert said.is_cut is not None
    assert said.is_cut.tolist() == [False] * 3 + [True] * 3 + [False] * 2
    whole = predictor("numeric", reads, max_tokens=16000).predict(rows())
    assert whole.is_cut is not None
    assert not whole.is_cut.any()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_dropped_while_training_is_cut_for_an_answer(form):
    dropping, cutting = (
        encoder(form, max_tokens=420, too_long=rule) for rule in ("drop", "truncate")
    )
    ours, theirs = dropping.encode_all(all_rows()), cutting.encode(all_rows())
    np.testing.assert_array_equal(ours.tokens.prefix_ids, theirs.tokens.prefix_ids)
    np.testing.assert_array_equal(ours.tokens.suffix_ids, theirs.tokens.suffix_ids)


@pytest.mark.parametrize("form", FORMS)
def test_a_context_too_short_for_anything_keeps_the_token_that_is_read(form):
    made = encoder(form, max_tokens=32)
    encoded = made.encode_all(all_rows())
    assert encoded.kept.tolist() == list(range(8))
    assert context_needed(encoded.tokens) <= 32
    whole = encoder(form).encode(all_rows()).tokens
    for row in range(8):
        ends = [tokens.suffix_start[row + 1] - 1 for tokens in (encoded.tokens, whole)]
        assert encoded.tokens.suffix_ids[ends[0]] == whole.suffix_ids[ends[1]]
        assert encoded.tokens.suffix_values[ends[0]] == whole.suffix_values[ends[1]]


@pytest.fixture(scope="module")
def tight(tmp_path_factory) -> tuple[TrainingData, RunSummary]:
    """A run by the paper's rule whose context is too short for some kernels."""
    data = make_dataset(num_kernels=12, num_configs=6, seed=1).data()
    paper = ("prompt.form=paper", "prompt.too_long=drop", "prompt.max_tokens=706")
    room = ("packing.lengths=[768]", "optimiser.max_steps=1")
    settings = config(*paper, *room)
    return data, run(data, settings, tmp_path_factory.mktemp("tight") / "run")


@pytest.mark.slow
def test_a_run_counts_what_its_context_left_out(tight, tmp_path):
    data, summary = tight
    notes = "\n".join(summary.notes)
    (dropped,) = re.findall(r"prompts: (\d+) launches of (\d+) are longer", notes)
    assert 0 < int(dropped[0]) < int(dropped[1])
    assert "it read only a part of the source" in notes
    assert f"prompts: {dropped[0]} launches" in (summary.folder / "model_card.md").read_text()
    loaded = load_run(summary.folder)
    found = evaluate(loaded, data, "all", tmp_path / "out", allow_seen=True)
    said = loaded.model.predict(data.rows)
    assert f"{np.sum(said.is_cut)} of {len(data)} rows are of kernels whose source" in found.table


def test_a_prediction_says_that_its_source_was_cut(tight):
    loaded = load_run(tight[1].folder)
    model = Model(loaded, Analyst(loaded.kernels, may_probe=False))
    short = "kernel void f(global float *a) { a[get_global_id(0)] = 0; }"
    long = short.replace("}", "".join(f"a[{i}] += {i};\n" for i in range(300)) + "}")
    for source, is_cut in ((short, False), (long, True)):
        said = model.predict(source, global_size=4096, local_size=64)
        assert any("longer than the model's context" in one for one in said.warnings) == is_cut

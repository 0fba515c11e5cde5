"""Rows to tokens: groups, truncation and dropping, statistics, saving, the two ways rows come."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from tests.support.factories.prompt_factory import (
    LAUNCHES,
    PLAIN,
    SPARSE,
    argument,
    dataset_rows,
    kernel,
    launch,
    prediction_rows,
)
from tests.support.factories.prompt_factory import G as GLOBAL
from tests.support.factories.synthetic_dataset import make_dataset
from trainer.errors import BadInput
from trainer.interface import Rows
from trainer.prompt import numeric
from trainer.prompt.encode import Encoder, new_encoder
from trainer.prompt.prompt_statistics import context_needed, prompt_lengths, prompt_statistics
from trainer.prompt.tokenizer import train_tokenizer
from trainer.regressor_config import PromptConfig

FORMS = ("paper", "compact", "numeric")
PLAIN_LAUNCHES = [launch(PLAIN, (items,), (64,), [items]) for items in (64, 4096)]
LONG = kernel(
    "long_one",
    "kernel void helper(global float *a) { a[0] = 2; }\n"
    "kernel void long_one(global float *a) {\n"
    + "".join(f"a[{number}] = {number};\n" for number in range(800))
    + "}\n",
    [argument(0, "a", GLOBAL, "float*")],
)
LONG_LAUNCHES = [launch(LONG, (items,), (32,), [800]) for items in (32, 64, 128)]


def all_rows() -> Rows:
    return dataset_rows([(SPARSE, LAUNCHES), (LONG, LONG_LAUNCHES), (PLAIN, PLAIN_LAUNCHES)])


def encoder(form: str, **changes) -> Encoder:
    return new_encoder(all_rows(), PromptConfig(form=form, vocabulary=600, **changes))


def text_of(made: Encoder, tokens, group: int) -> str:
    return made.tokenizer.text(
        tokens.prefix_ids[tokens.prefix_start[group] : tokens.prefix_start[group + 1]]
    )


@pytest.mark.parametrize("form", FORMS)
def test_launches_share_the_prefix_of_their_kernel(form):
    made = encoder(form, max_tokens=16_384)
    encoded = made.encode(all_rows())
    tokens = encoded.tokens
    assert tokens.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert tokens.num_groups == 3
    assert encoded.kept.tolist() == list(range(8))
    assert (encoded.num_truncated, encoded.num_dropped) == (0, 0)
    assert tokens.prefix_start[-1] == len(tokens.prefix_ids)
    assert tokens.suffix_start[-1] == len(tokens.suffix_ids) == len(tokens.suffix_values)
    assert np.all(tokens.prefix_ids >= 0)
    assert tokens.suffix_lengths.min() > 0
    assert np.all(tokens.suffix_ids < 0) == (form == "numeric")
    assert not np.any(tokens.suffix_values[tokens.suffix_ids >= 0])
    assert "void plain(global float4" in text_of(made, tokens, 2)
    ends = tokens.suffix_ids[tokens.suffix_start[1:] - 1]
    assert len(set(ends.tolist())) == 1, "the token that is read is the same for all"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_tokens", [16_384, 420])
def test_a_prediction_gets_the_tokens_of_the_dataset(form, max_tokens):
    made = encoder(form, max_tokens=max_tokens)
    dataset = made.encode(all_rows()).tokens
    row = 0
    for group, (of, configs) in enumerate(
        [(SPARSE, LAUNCHES), (LONG, LONG_LAUNCHES), (PLAIN, PLAIN_LAUNCHES)]
    ):
        for one in configs:
            alone = made.encode(prediction_rows(of, [one])).tokens
            prefix = slice(*dataset.prefix_start[group : group + 2])
            suffix = slice(*dataset.suffix_start[row : row + 2])
            assert alone.prefix_ids.tolist() == dataset.prefix_ids[prefix].tolist()
            assert alone.suffix_ids.tolist() == dataset.suffix_ids[suffix].tolist()
            assert alone.suffix_values.tolist() == dataset.suffix_values[suffix].tolist()
            row += 1


def test_rows_in_any_order_and_kernels_that_do_not_occur():
    made = encoder("numeric")
    rows = all_rows()
    index = np.array([7, 1, 6, 0], dtype=np.intp)
    whole, some = made.encode(rows).tokens, made.encode(rows.take(index)).tokens
    assert some.num_groups == 2
    assert some.group.tolist() == [1, 0, 1, 0]
    for at, row in enumerate(index):
        assert (
            some.suffix_values[slice(*some.suffix_start[at : at + 2])].tolist()
            == whole.suffix_values[slice(*whole.suffix_start[row : row + 2])].tolist()
        )


def test_a_kernel_measured_in_two_tasks_is_one_group_and_two_device_classes_are_two():
    rows = dataset_rows([(PLAIN, PLAIN_LAUNCHES[:1]), (PLAIN, PLAIN_LAUNCHES[1:])])
    made = encoder("numeric")
    assert made.encode(rows).tokens.group.tolist() == [0, 0]
    at = rows.kernels.column_names.index("device_class")
    kernels = rows.kernels.set_column(at, "device_class", pa.array(["synth", "other"]))
    assert made.encode(dataclasses.replace(rows, kernels=kernels)).tokens.group.tolist() == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_a_long_kernel_is_cut_and_counted_and_keeps_its_signature(form):
    made = encoder(form, max_tokens=420)
    encoded = made.encode(all_rows())
    assert (encoded.num_truncated, encoded.num_dropped) == (1, 0)
    assert context_needed(encoded.tokens) <= 420
    text = text_of(made, encoded.tokens, 1)
    assert "kernel void long_one(global float *a) {\na[0] = 0;" in text
    assert "a[799] = 799;\n}\n" in text
    assert "\n...\n" in text
    assert "helper" not in text
    if form == "paper":
        assert text.startswith("Predict time for the following OpenCL kernel:\n```kernel void long")
        assert text.endswith("}\n```\n")


@pytest.mark.parametrize("form", FORMS)
def test_long_prompts_are_dropped_where_asked_and_counted(form):
    made = encoder(form, max_tokens=420, too_long="drop")
    encoded = made.encode(all_rows())
    assert encoded.kept.tolist() == [0, 1, 2, 6, 7]
    assert (encoded.num_truncated, encoded.num_dropped) == (0, 3)
    assert encoded.tokens.group.tolist() == [0, 0, 0, 1, 1]
    assert encoded.tokens.num_groups == 2
    statistics = prompt_statistics(encoded)
    assert (statistics.num_launches, statistics.num_dropped_launches) == (5, 3)


@pytest.mark.parametrize("too_long", ["truncate", "drop"])
def test_a_context_that_fits_nothing_drops_every_launch(too_long):
    encoded = encoder("paper", max_tokens=32, too_long=too_long).encode(all_rows())
    assert len(encoded.kept) == len(encoded.tokens) == encoded.tokens.num_groups == 0
    assert encoded.num_dropped == 8
    assert prompt_statistics(encoded).max_tokens == 0


def test_no_prompt_exceeds_the_context_whatever_it_is():
    for form in FORMS:
        made = encoder(form)
        for max_tokens in range(60, 500, 40):
            config = made.config.model_copy(update={"max_tokens": max_tokens})
            encoded = dataclasses.replace(made, config=config).encode(all_rows())
            assert context_needed(encoded.tokens) <= max_tokens
            assert len(encoded.kept) + encoded.num_dropped == 8


def test_statistics_are_those_of_the_lengths():
    encoded = encoder("compact").encode(all_rows())
    lengths = prompt_lengths(encoded.tokens)
    statistics = prompt_statistics(encoded)
    assert statistics.median_tokens == np.median(lengths)
    assert statistics.p90_tokens == np.percentile(lengths, 90)
    assert statistics.max_tokens == context_needed(encoded.tokens) == lengths.max()
    assert (statistics.num_launches, statistics.num_groups) == (8, 3)


def test_a_kernel_without_source_is_named():
    rows = all_rows()
    at = rows.kernels.column_names.index("source")
    sources = [None, *rows.kernels.column("source").to_pylist()[1:]]
    kernels = rows.kernels.set_column(at, "source", pa.array(sources, pa.string()))
    missing = dataclasses.replace(rows, kernels=kernels)
    made = encoder("numeric")
    with pytest.raises(BadInput, match=r"kernel 'sparse' comes without its source.*gbdt"):
        made.encode(missing)
    # Only kernels that are asked for need one.
    assert len(made.encode(missing.take(np.array([6, 7], dtype=np.intp))).kept) == 2


@pytest.mark.parametrize("form", FORMS)
def test_an_encoder_is_loaded_as_it_was_saved(form, tmp_path):
    made = encoder(form, max_tokens=420)
    made.save(tmp_path)
    loaded = Encoder.load(tmp_path)
    assert loaded.config == made.config
    assert loaded.slots == numeric.SLOTS
    one, other = made.encode(all_rows()).tokens, loaded.encode(all_rows()).tokens
    assert one.prefix_ids.tolist() == other.prefix_ids.tolist()
    assert one.suffix_ids.tolist() == other.suffix_ids.tolist()


def test_a_stored_table_of_slots_is_kept_and_an_unknown_slot_refused(tmp_path):
    encoder("numeric").save(tmp_path)
    file = tmp_path / "prompt.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "slots": ["work_items", "argument_0"]}))
    tokens = Encoder.load(tmp_path).encode(all_rows()).tokens
    assert tokens.suffix_ids[-2:].tolist() == [-2, -1]
    file.write_text(json.dumps({**content, "slots": ["work_items", "moon_phase"]}))
    with pytest.raises(BadInput, match="moon_phase are not known"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"config": {"form": "odd"}, "slots": []}'])
def test_a_damaged_prompt_file_is_refused(content, tmp_path):
    encoder("numeric").save(tmp_path)
    (tmp_path / "prompt.json").write_text(content)
    with pytest.raises(BadInput, match=r"prompt\.json"):
        Encoder.load(tmp_path)


def test_a_pretrained_folder_gives_its_tokenizer(tmp_path):
    train_tokenizer([SPARSE.source], 300).save(tmp_path)
    made = new_encoder(all_rows(), PromptConfig(form="compact"), pretrained=tmp_path)
    assert made.tokenizer.num_tokens <= 300
    with pytest.raises(BadInput, match="no tokenizer"):
        new_encoder(all_rows(), PromptConfig(form="compact"), pretrained=tmp_path / "absent")


def test_a_dataset_of_the_store_is_encoded():
    rows = make_dataset(num_kernels=4, num_configs=20).data().rows
    encoded = new_encoder(rows, PromptConfig(vocabulary=300)).encode(rows)
    assert encoded.tokens.num_groups == 4
    assert len(encoded.kept) == len(rows)


def test_many_numeric_launches_are_quick():
    rows = dataset_rows([(SPARSE, LAUNCHES), (PLAIN, PLAIN_LAUNCHES)])
    many = rows.take(np.tile(np.arange(5, dtype=np.intp), 10_000))
    made = encoder("numeric")
    start = time.process_time()
    encoded = made.encode(many)
    assert time.process_time() - start < 3, "a loop over launches has come in"
    assert len(encoded.kept) == 50_000


def test_importing_the_prompt_loads_no_heavy_library():
    code = (
        "import sys, trainer.prompt.encode, trainer.prompt.prompt_statistics;"
        "print([name for name in ('tokenizers', 'transformers', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

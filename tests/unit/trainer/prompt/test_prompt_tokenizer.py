"""Tokenizers: ours is deterministic and loses nothing; Hugging Face folders are read or refused."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers  # noqa: TID251

from tests.support.factories.prompt_factory import LAUNCHES, PLAIN, SPARSE, dataset_rows, launch
from trainer.errors import BadInput
from trainer.prompt import compact, paper
from trainer.prompt.encode import distinct_kernels
from trainer.prompt.launch_numbers import launch_numbers
from trainer.prompt.source_pieces import plain_source
from trainer.prompt.tokenizer import (
    MIN_VOCABULARY,
    PADDING,
    TextTokenizer,
    load_tokenizer,
    train_tokenizer,
)

TEXTS = [plain_source(SPARSE.source), plain_source(PLAIN.source), "float get_global_id(0)\n" * 4]


def gpt2_like(texts) -> tokenizers.Tokenizer:
    """A byte-level BPE that splits as GPT-2 and CodeGen do, with every merge the texts offer."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer=trainer)
    return made


def prompts(form):
    rows = dataset_rows([(SPARSE, LAUNCHES), (PLAIN, [launch(PLAIN, (64,), (64,), [64])])])
    kernels, kernel = distinct_kernels(rows)
    suffixes = form.suffixes(kernels, kernel, launch_numbers(rows.samples))
    for number, suffix in zip(kernel.tolist(), suffixes, strict=True):
        one = kernels[number]
        if form is paper:
            yield paper.BEFORE_CODE + one.source + paper.AFTER_CODE, suffix
        else:
            yield compact.before_code(one) + plain_source(one.source), suffix


@pytest.mark.parametrize("form", [paper, compact])
def test_prefix_and_suffix_tokenised_apart_equal_the_whole(form):
    pairs = list(prompts(form))
    runs = ["\n\n\n\n a\n\n", "x\n\n\n\n", "```\n```\n\n", "}\n}\n\n"] * 5
    whole = [prefix + suffix for prefix, suffix in pairs]
    pretrained = TextTokenizer(gpt2_like([*whole, *runs]))
    assert len(pretrained.ids(["\n\n"])[0]) == 1, "line ends must be able to join for this test"
    ours = train_tokenizer([*whole, *runs], 1000)
    for tokenizer in (pretrained, ours):
        for prefix, suffix in pairs:
            apart = [*tokenizer.ids([prefix])[0], *tokenizer.ids([suffix])[0]]
            assert apart == tokenizer.ids([prefix + suffix])[0].tolist()
    # One character further the same tokenizer joins what the whole keeps apart.
    if form is paper:
        prefix, suffix = pairs[0]
        elsewhere = [*pretrained.ids([prefix + "\n"])[0], *pretrained.ids([suffix[1:]])[0]]
        assert elsewhere != pretrained.ids([prefix + suffix])[0].tolist()


def test_training_is_deterministic_byte_by_byte():
    one = train_tokenizer(TEXTS, 400).to_json()
    assert train_tokenizer([*reversed(TEXTS), TEXTS[0]], 400).to_json() == one
    assert train_tokenizer(TEXTS[:1], 400).to_json() != one


def test_ours_has_padding_first_and_at_most_the_vocabulary_asked_for():
    tokenizer = train_tokenizer(TEXTS, 320)
    assert tokenizer.num_tokens == 320
    assert tokenizer.padding_id == 0
    assert tokenizer.text([0]) == PADDING
    assert train_tokenizer(["a"], 5000).num_tokens < 320
    assert train_tokenizer(["a"], MIN_VOCABULARY).num_tokens == MIN_VOCABULARY


def test_digits_are_single_and_names_are_whole():
    tokenizer = train_tokenizer(TEXTS, 400)
    (ids,) = tokenizer.ids(["get_global_id(1024) 1 0 2 4\n"])
    pieces = [tokenizer.text([one]) for one in ids]
    assert pieces[0] == "get_global_id"
    assert pieces[2:6] == ["1", "0", "2", "4"]
    assert pieces[-5:-1] == [" 1", " 0", " 2", " 4"]
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    assert not [token for token in vocabulary if sum(sign.isdecimal() for sign in token) > 1]


@pytest.mark.parametrize(
    "text", ["", "naïve — 中文 🚀", "\x00\x01\x7f\u2028", "\t\t \n\n", "\ufffd", "½²१", "a" * 5000]
)
def test_any_text_comes_back(text):
    tokenizer = train_tokenizer(TEXTS, 300)
    (ids,) = tokenizer.ids([text])
    assert tokenizer.text(ids) == text


def test_many_texts_are_the_same_as_one_by_one():
    tokenizer = train_tokenizer(TEXTS, 300)
    texts = [f"global {number}\n" for number in range(5000)]
    together = tokenizer.ids(texts)
    assert len(together) == 5000
    for number in (0, 4095, 4096, 4999):
        assert together[number].tolist() == tokenizer.ids([texts[number]])[0].tolist()


def test_save_and_load(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 300)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.ids(TEXTS)[0].tolist() == tokenizer.ids(TEXTS)[0].tolist()
    loaded.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == tokenizer.to_json()


def hugging_face_folder(folder: Path) -> tokenizers.Tokenizer:
    """A folder as CodeGen's: vocab.json, merges.txt and runs of blanks as added tokens."""
    made = gpt2_like([SPARSE.source, PLAIN.source])
    made.model.save(str(folder))
    added = {" " * length: made.get_vocab_size() + length - 2 for length in range(2, 6)}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    made.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    return made


def test_a_folder_with_merges_is_read_with_its_added_tokens(tmp_path):
    wanted = hugging_face_folder(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "kernel void f() {\n     int a;\n}"
    assert loaded.ids([text])[0].tolist() == wanted.encode(text).ids
    assert loaded.text(wanted.encode(text).ids) == text
    assert loaded.num_tokens == wanted.get_vocab_size()
    assert loaded.padding_id is None


def test_a_folder_with_tokenizer_json_is_taken_as_it_is_but_not_cut(tmp_path):
    wanted = gpt2_like(TEXTS)
    wanted.enable_truncation(4)
    wanted.enable_padding(length=9)
    wanted.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.text(loaded.ids([TEXTS[0]])[0]) == TEXTS[0]


@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_dropout_of_a_tokenizer_json_is_turned_off(tmp_path, dropout):
    """It drops merges at random: two calls gave different tokens, in training and prediction."""
    wanted = gpt2_like(TEXTS)
    wanted.save(str(tmp_path / "tokenizer.json"))
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["dropout"] = dropout
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    loaded = load_tokenizer(tmp_path)
    for _ in range(5):
        assert loaded.ids(TEXTS)[0].tolist() == wanted.encode(TEXTS[0]).ids
    loaded.save(tmp_path)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert saved.model.dropout is None
    assert saved.encode(TEXTS[0]).ids == wanted.encode(TEXTS[0]).ids


@pytest.mark.skipif(
    not hasattr(tokenizers.models.Unigram, "alpha"), reason="this release samples no pieces"
)
def test_sampling_of_a_unigram_model_is_turned_off():
    pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.5), ("aa", -1.2), ("aab", -1.3)]
    sampling = tokenizers.Tokenizer(
        tokenizers.models.Unigram(pieces, unk_id=0, alpha=0.1, nbest_size=64)
    )
    text = "aabaabab" * 4
    assert len({tuple(sampling.encode(text).ids) for _ in range(20)}) > 1
    loaded = TextTokenizer(sampling)
    assert len({tuple(loaded.ids([text])[0].tolist()) for _ in range(20)}) == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"vocab.json": "{}"},
        {"tokenizer.json": "{"},
        {"tokenizer.json": "{}"},
        {"tokenizer.json": "\udcff"},
        {"vocab.json": "[]", "merges.txt": "a b"},
        {"vocab.json": "{}", "merges.txt": "a b"},
        {"vocab.json": '{"a": 0}', "merges.txt": "", "added_tokens.json": '{"  ": 7}'},
        {"vocab.json": '{"a": 0}', "merges.txt": "", "added_tokens.json": "[3]"},
    ],
)
def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_no_such_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no tokenizer"):
        load_tokenizer(tmp_path / "absent")


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_long_vocabulary_of_two_files_is_refused(tmp_path, name):
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with (tmp_path / name).open("ab") as file:
        file.truncate(2**23 + 1)
    with pytest.raises(BadInput, match=f"{name} has more than 8388608 bytes"):
        load_tokenizer(tmp_path)


def merges_folder(folder: Path, added: Mapping[str, object]) -> Path:
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("")
    (folder / "added_tokens.json").write_text(json.dumps(added))
    return folder


def test_many_added_tokens_are_read_at_once(tmp_path):
    """One call of the library for each of 12,000 tokens took 38 s."""
    added = {f"<token {number}>": number for number in range(12_000, 0, -1)}
    before = time.process_time()
    loaded = load_tokenizer(merges_folder(tmp_path, added))
    assert time.process_time() - before < 5
    assert loaded.ids(["<token 1>a<token 12000>"])[0].tolist() == [1, 0, 12_000]


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ({"a" * (2**20 + 1): 1}, "added tokens have 1,048,577 bytes"),
        ({f"{number:x}": number for number in range(1, 50_002)}, "50,001 added tokens"),
        ({"<one>": 1, "<two>": 1}, "'<two>' cannot get its id 1"),
        ({"<one>": "1"}, "'<one>' cannot get its id '1'"),
    ],
)
def test_added_tokens_that_are_refused(tmp_path, added, says):
    with pytest.raises(BadInput, match=says):
        load_tokenizer(merges_folder(tmp_path, added))

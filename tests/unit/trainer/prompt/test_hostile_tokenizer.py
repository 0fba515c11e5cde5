"""A ``tokenizer.json`` that makes its library panic or fail is refused with BadInput.

The library panics with a BaseException that is no Exception, and prints the panic to stderr, so
that ``train --init`` and ``predict`` ended with a traceback. Some panics came when it read the file,
others when it made tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers  # noqa: TID251

from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from trainer.errors import BadInput
from trainer.prompt.tokenizer import TextTokenizer, load_tokenizer

Json = dict[str, Any]
CODE = "__kernel void a(__global float *b) { b[get_global_id(0)] += 1.5f; }\n"
BPE: Json = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
UNKNOWN: Json = {"vocab": {"a": 0}, "unk_token": "[UNK]"}
WORDPIECE: Json = {**UNKNOWN, "type": "WordPiece", "continuing_subword_prefix": "##"}
TEMPLATE: Json = {
    "type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {},
}  # fmt: skip
ABSENT = {"type": "BertProcessing", "sep": ["[SEP]", 2**32 - 1], "cls": ["[CLS]", 77]}


def written(folder: Path, **parts: object) -> Path:
    content = {"version": "1.0", "added_tokens": [], "model": BPE, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def bpe(**changes: object) -> Json:
    return {"model": {**BPE, **changes}}


def wordpiece(**changes: object) -> Json:
    return {"model": {**WORDPIECE, "max_input_chars_per_word": 100, **changes}}


def unigram(pieces: list[Any], **changes: object) -> Json:
    return {"model": {"type": "Unigram", "vocab": pieces, **changes}}


def decoder_replace(regex: str) -> Json:
    return {"decoder": {"type": "Replace", "pattern": {"Regex": regex}, "content": ""}}


def strip(**changes: object) -> Json:
    return {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 0, **changes}}


REFUSED: dict[str, tuple[Json, str]] = {
    "unknown token of BPE": (bpe(unk_token="zzz"), "zzz"),
    "unknown token of WordPiece": (wordpiece(), "UNK"),
    "unknown token of WordLevel": ({"model": {**UNKNOWN, "type": "WordLevel"}}, "UNK"),
    "unknown token of Unigram": (unigram([["a", -1.0]]), "unk_id"),
    "an id beyond 32 bits": (bpe(vocab={"a": 2**32}), "id 4294967296"),
    "the largest id": (bpe(vocab={"a": 2**32 - 1}), "id 4294967295"),
    "an id that int32 does not hold": (bpe(vocab={"a": 2**31}), "id 2147483648"),
    "a sparse vocabulary": (bpe(vocab={"a": 2**23}), "id 8388608, which is too large"),
    "a negative id": (bpe(vocab={"a": -1}), "id -1"),
    "an id that is a text": (bpe(vocab={"a": "1"}), "id '1'"),
    "an id that is no number": (bpe(vocab={"a": True}), "id True"),
    "no token": (bpe(vocab={}), "makes no token"),
    "a token that code does not have": (bpe(vocab={"\u2603": 0}), "makes no token"),
    "a long prefix": (bpe(vocab={"a": 0, "b": 1, "ab": 2}, merges=[["a", "b"]], continuing_subword_prefix="#####"), "merge"),
    "half a character": (bpe(vocab={"a": 0, "\u00e9": 1}, merges=["a \u00e9"], continuing_subword_prefix="#"), "merge"),
    "a merge to a token longer than all": (bpe(merges=[["a", "b"]]), "merge of 'a' and 'b'"),
    "a merge of three": (bpe(merges=[["a", "b", "a"]]), "cannot be read"),
    "two tokens with one id": (bpe(vocab={"a": 0, "b": 0}), "one id"),
    "a prefix of a megabyte": (bpe(continuing_subword_prefix="#" * 2**20), "1,048,576 bytes"),
    "a long word": (wordpiece(max_input_chars_per_word=257), "is 257: only"),
    "an unknown model": (bpe(type="Gpt"), "model 'Gpt' is not supported"),
    "a score": (unigram([["a", 1e300]], unk_id=0), "score"),
    "a score that is a text": (unigram([["a", "1"]], unk_id=0), "score"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "FixedLength"),
    "an unknown pre-tokenizer": ({"pre_tokenizer": {"type": "Gpt"}}, "'Gpt' is not supported"),
    "an unknown decoder": ({"decoder": {"type": "Gpt", "suffix": ""}}, "'Gpt' is not supported"),
    "a decoder without a kind": ({"decoder": {"suffix": ""}}, "cannot be read"),
    "a decoder's expression": (decoder_replace("(a+)+b"), "could take long"),
    "a decoder's long text": ({"decoder": {"type": "WordPiece", "prefix": "#" * 300, "cleanup": True}}, "300 bytes"),
    "decoders that make a text long": ({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}}, "64 times"),
    "a decoder that cuts": (strip(stop=2**64 - 1), "18446744073709551615"),
    "a decoder that cuts twice": (strip(stop=2), "Strip"),
    "a long text to replace": ({"normalizer": {"type": "Replace", "pattern": {"String": "a" * 300}, "content": ""}}, "300 bytes"),
    "a delimiter": ({"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": ""}}, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_file_and_the_reason_without_a_panic(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parts, says = REFUSED[name]
    with pytest.raises(BadInput, match=says) as raised:
        load_tokenizer(written(tmp_path, **parts))
    assert str(tmp_path) in str(raised.value)
    assert "tokenizer.json" in str(raised.value)
    assert capfd.readouterr().err == ""


UNUSED: dict[str, Json] = {
    "a template of B only": {"post_processor": TEMPLATE},
    "a template of an absent id": {"post_processor": {**TEMPLATE, "single": [{"SpecialToken": {"id": "no", "type_id": 0}}]}},
    "tokens that the vocabulary lacks": {"post_processor": ABSENT},
    "an unknown post-processor": {"post_processor": {"type": "Gpt"}},
    "a truncation to nothing": {"truncation": {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 10}},
    "a padding": {"padding": {"strategy": {"Fixed": 2**60}, "direction": "Right", "pad_id": 2**32 - 1, "pad_token": "a"}},
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSED)
def test_parts_that_no_token_depends_on_are_left_out(tmp_path: Path, name: str) -> None:
    loaded = load_tokenizer(written(tmp_path, **UNUSED[name]))
    assert loaded.ids(["ab", ""])[0].tolist() == [0, 1]
    assert json.loads(loaded.to_json())["post_processor"] is None


def test_the_library_sees_what_was_checked(tmp_path: Path) -> None:
    """It read the file on its own, and reads a key that occurs twice each time."""
    content = (
        '{"version": "1.0", "pre_tokenizer": {"type": "FixedLength", "length": 0}, "model": %s}'
    )
    twice = content % json.dumps(BPE)
    (tmp_path / "tokenizer.json").write_text(twice[:-1] + ', "pre_tokenizer": null}')
    assert load_tokenizer(tmp_path).ids(["ab"])[0].tolist() == [0, 1]


_LOAD = """
import sys
from pathlib import Path
from trainer.prompt.tokenizer import load_tokenizer
try:
    load_tokenizer(Path(sys.argv[1]))
except ValueError:
    pass
"""


def test_a_long_expression_of_a_decoder_takes_no_gigabyte(tmp_path: Path) -> None:
    r"""155,000 ``\p{L}`` took 2.3 GiB."""
    assert peak_bytes(_LOAD, written(tmp_path, **decoder_replace(r"\p{L}" * 155_000))) < 0.5 * GIB


OF_MODELS: dict[str, Json] = {
    "GPT-2, without a kind of model": {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "dropout": None, "unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
            "vocab": {**{one: number for number, one in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}, "\u0120a": 256},
            "merges": ["\u0120 a"],
        },
    },
    "Llama, CodeLlama": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": ["\u2581 a"],
            "vocab": {**{one: number for number, one in enumerate(["<unk>", "<s>", "\u2581", "a", "\u2581a"])}, **{f"<0x{byte:02X}>": 5 + byte for byte in range(256)}},
        },
    },
    "BERT, without a kind of model": {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {one: number for number, one in enumerate(["[UNK]", "[SEP]", "[CLS]", "a", "##a", "b", "("])},
        },
    },
    "T5, without a kind of model": {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
        "model": {"unk_id": 0, "vocab": [["<unk>", 0.0], ["\u2581", -2.1], ["a", -3.0625], ["\u2581a", -1.123456789012345]]},
    },
    "a level of words": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}]},
        "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "void": 2, "1": 3}, "unk_token": "?"},
    },
}  # fmt: skip


def test_a_long_harmless_expression_is_accepted(tmp_path: Path) -> None:
    """DeepSeek's has 500 characters."""
    pattern = {"Regex": "|".join(f"word{number}" for number in range(80))}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    assert load_tokenizer(written(tmp_path, pre_tokenizer=split)).ids(["ab"])[0].tolist() == [0, 1]


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_tokenizers_of_known_models_give_the_library_s_ids_and_text(
    tmp_path: Path, name: str
) -> None:
    loaded = load_tokenizer(written(tmp_path, **OF_MODELS[name]))
    wanted = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (CODE, "", "a (aa) 11\t\n", "\x00\u00e9\u4e2d\U0001f680"):
        ids = wanted.encode(text, add_special_tokens=False).ids
        assert loaded.ids([text])[0].tolist() == ids
        assert loaded.text(ids) == wanted.decode(ids, skip_special_tokens=False)


def with_unknown() -> tokenizers.Tokenizer:
    """Return a tokenizer that fails on every character but a and b."""
    return tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [], unk_token="zzz"))


def test_a_text_that_the_library_cannot_take_is_bad_input() -> None:
    tokenizer = TextTokenizer(with_unknown(), source="here/tokenizer.json")
    assert tokenizer.ids(["ab"])[0].tolist() == [0, 1]
    with pytest.raises(BadInput, match=r"here/tokenizer.json: .*zzz.*another"):
        tokenizer.ids(["abc"])


def test_a_panic_of_the_library_is_bad_input() -> None:
    library = with_unknown()
    library.decoder = tokenizers.decoders.Strip("a", 0, 5)
    tokenizer = TextTokenizer(library, source="here/tokenizer.json")
    assert tokenizer.text([1]) == "b"
    with pytest.raises(BadInput, match=r"here/tokenizer.json: .*index out of bounds.*another"):
        tokenizer.text([0])


class Interrupted:
    """A library that the user interrupts."""

    model = None

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def decode(self, *_: object, **__: object) -> str:
        raise KeyboardInterrupt


def test_an_interrupt_is_no_bad_input() -> None:
    with pytest.raises(KeyboardInterrupt):
        TextTokenizer(Interrupted()).text([0])


@pytest.mark.parametrize("number", [2**32, 2**32 + 1, -1, 2**23, 2**31, 1.5, None])
def test_ids_of_a_vocab_json_are_checked(tmp_path: Path, number: object) -> None:
    """The library took 2^32 + 1 for 1."""
    (tmp_path / "vocab.json").write_text(json.dumps({"a": number}))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(BadInput, match=r"vocab.json.* id "):
        load_tokenizer(tmp_path)


def test_a_merges_txt_that_makes_the_library_panic(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(BadInput, match="merge of 'a' and 'b'"):
        load_tokenizer(tmp_path)
    assert capfd.readouterr().err == ""

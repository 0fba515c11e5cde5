"""Tokenizers from elsewhere: those of known models pass, those that would take gigabytes do not."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers  # noqa: TID251

from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from trainer.errors import BadInput
from trainer.prompt.foreign_tokenizer import _growth_of_map
from trainer.prompt.tokenizer import load_tokenizer

Json = dict[str, Any]
_LOAD = """
import sys
from pathlib import Path
from trainer.prompt.tokenizer import load_tokenizer
print(load_tokenizer(Path(sys.argv[1])).num_tokens)
"""


def written(folder: Path, **changes: object) -> Path:
    """Write the smallest ``tokenizer.json``, with some keys changed."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    content = {**json.loads(made.to_str()), **changes}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def sequence(*steps: object) -> Json:
    return {"type": "Sequence", "normalizers": list(steps)}


def replace(pattern: str, content: str, kind: str = "String") -> Json:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def char_map(*mapped: tuple[str, bytes], num_units: int = 512) -> bytes:
    """Return a SentencePiece map of ASCII characters, in the form of ``precompiled_charsmap``."""
    units = np.zeros(num_units, dtype="<u4")
    units[0] = 256 << 10  # the children are from place 256
    texts = b""
    for character, text in mapped:
        place = 256 ^ ord(character)
        leaf = 1 if character < "a" else 2
        units[place] = (place ^ leaf) << 10 | 1 << 8 | ord(character)
        units[leaf] = 1 << 31 | len(texts)
        texts += text + b"\0"
    return len(units.tobytes()).to_bytes(4, "little") + units.tobytes() + texts


def precompiled(data: bytes) -> Json:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


MAP = char_map(("A", b"a"), ("b", b" "))
PREPEND = {"type": "Prepend", "prepend": "▁"}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
BERT = {
    "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
    "strip_accents": None, "lowercase": True,
}  # fmt: skip
QUOTES = [replace("``", '"'), replace("''", '"')]
OF_MODELS: dict[str, Json] = {
    "Llama-2, Mistral, Phi-3": {"normalizer": sequence(PREPEND, replace(" ", "▁"))},
    "Gemma": {"normalizer": replace(" ", "▁")},
    "BERT": {"normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"}},
    "T5, XLM-R": {
        "normalizer": sequence(precompiled(MAP), STRIP, replace(" {2,}", "▁", "Regex")),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
    },
    "ALBERT": {
        "normalizer": sequence(
            *QUOTES, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
            precompiled(MAP), replace(" {2,}", " ", "Regex"),
        ),
        "pre_tokenizer": METASPACE,
    },
    "Qwen2": {"normalizer": {"type": "NFC"}, "pre_tokenizer": BYTE_LEVEL},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_normalizers_of_known_models_are_accepted(tmp_path: Path, name: str) -> None:
    loaded = load_tokenizer(written(tmp_path, **OF_MODELS[name]))
    assert 0 in loaded.ids(["Aa b  a"])[0]


def test_a_normalizer_is_applied(tmp_path: Path) -> None:
    changes = {"model": {"type": "BPE", "vocab": {"a": 0, "▁": 1}, "merges": []}}
    loaded = load_tokenizer(written(tmp_path, **OF_MODELS["Llama-2, Mistral, Phi-3"], **changes))
    assert loaded.ids(["a a"])[0].tolist() == [1, 0, 1, 0]


LONG = replace("a", "a" * 64)
REFUSED: dict[str, tuple[Json, str]] = {
    "four that made 8 GB of a source": ({"normalizer": sequence({"type": "NFC"}, *[LONG] * 4)}, "16777216 times"),
    "one of them": ({"normalizer": LONG}, "64 times as long"),
    "small ones in a row": ({"normalizer": sequence(*[replace("a", "aa")] * 5)}, "32 times"),
    "sequences in sequences": ({"normalizer": sequence(sequence(LONG), sequence(LONG))}, "4096 times"),
    "a long prefix": ({"normalizer": {"type": "Prepend", "prepend": "a" * 16}}, "17 times"),
    "nothing replaced": ({"normalizer": replace("", "a" * 16)}, "17 times"),
    "a regular expression": ({"normalizer": replace("(?=a)", "a" * 16, "Regex")}, "17 times"),
    "byte levels": ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 5}}, "32 times"),
    "many": ({"normalizer": sequence(*[{"type": "NFC"}] * 33)}, "more than 32 normalizers"),
    "an unknown one": ({"normalizer": {"type": "Repeat"}}, "'Repeat' is not supported"),
    "a map to long texts": ({"normalizer": precompiled(char_map(("a", b"x" * 65)))}, "more than 64 bytes"),
    "a map of ASCII": ({"normalizer": precompiled(char_map(("a", b"x" * 17)))}, "17 times"),
    "no map": ({"normalizer": precompiled(b"")}, "Precompiled normalizer is damaged"),
    "a map beyond its end": ({"normalizer": precompiled(MAP[:4] + b"\xff\xff\xff\x7f" + MAP[8:])}, "is damaged"),
    "texts beyond their end": ({"normalizer": precompiled(MAP[:-4])}, "is damaged"),
    "a text without an end": ({"normalizer": precompiled(MAP[:-1])}, "is damaged"),
    "half of a character": ({"normalizer": precompiled(char_map(("a", b"\xc3\xa9"))[:-3] + b"\xa9\0")}, "cannot be read"),
    "no base64": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "é"}}, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_make_a_text_long_or_end_the_process_is_refused(
    tmp_path: Path, name: str
) -> None:
    changes, says = REFUSED[name]
    with pytest.raises(BadInput, match=says):
        load_tokenizer(written(tmp_path, **changes))


def test_a_map_that_begins_within_a_character() -> None:
    data = bytearray(char_map(("a", "é".encode())))
    data[4 + 4 * 2] = 1
    with pytest.raises(ValueError, match="is damaged"):
        _growth_of_map(bytes(data))


def added(text: str) -> Json:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 0, "content": text, **dict.fromkeys(flags, False)}


def unigram(pieces: list[str]) -> Json:
    return {"type": "Unigram", "unk_id": 0, "vocab": [[one, -1.0] for one in pieces]}


def random_pieces(number: int, length: int) -> list[str]:
    letters = random.Random(5)
    return ["".join(letters.choices("abcdefghij", k=length)) for _ in range(number)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"added_tokens": [added("a" * 2**19), added("b" * (2**19 + 1))]}, "added tokens have"),
        ({"added_tokens": [added("é" * (2**19 + 1))]}, "added tokens have 1,048,578 bytes"),
        ({"model": unigram(["a" * 1001])}, "Unigram model has more than 1,000 bytes"),
        ({"added_tokens": [{"content": 5}]}, "cannot be read"),
        ({"model": {"type": "Unigram", "vocab": [5]}}, "cannot be read"),
        ({"normalizer": 5}, "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tokens_of_which_the_library_makes_gigabytes_are_refused(
    tmp_path: Path, changes: Json, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        load_tokenizer(written(tmp_path, **changes))


def test_too_many_added_tokens_are_refused(tmp_path: Path) -> None:
    tokens = [added(str(number)) for number in range(50_001)]
    with pytest.raises(BadInput, match="50,001 added tokens"):
        load_tokenizer(written(tmp_path, added_tokens=tokens))


@pytest.mark.parametrize(("number", "length"), [(1_900, 999), (150_000, 20)])
def test_a_unigram_model_of_many_nodes_is_refused(tmp_path: Path, number: int, length: int) -> None:
    folder = written(tmp_path, model=unigram(random_pieces(number, length)))
    with pytest.raises(BadInput, match=f"Unigram model of {number:,} tokens would take"):
        load_tokenizer(folder)


def words(number: int) -> list[str]:
    """Return distinct pieces of 12 bytes on average, which share starts as words do."""
    parts = (
        ["ka", "lo", "mi", "nu", "re", "sy", "ta", "vo"], ["a", "be", "di", "fo"], "gjpwz",
        ["st", "nd", "rk"], ["", "ing", "ed", "er", "s"], "0123456789", "abcdefghijk",
    )  # fmt: skip
    return ["▁" + "".join(one) for one in itertools.islice(itertools.product(*parts), number)]


@pytest.mark.parametrize(
    "pieces", [lambda: words(250_000), lambda: random_pieces(1_700, 999)], ids=["XLM-R", "largest"]
)
def test_a_large_unigram_model_takes_no_gigabyte(
    tmp_path: Path, pieces: Callable[[], list[str]]
) -> None:
    folder = written(tmp_path, model=unigram(pieces()))
    assert peak_bytes(_LOAD, folder) < 0.8 * GIB


@pytest.mark.parametrize("pattern", [r"(?:[\s\S]|[\s\S]){30}(?!)", r"([\s\S]|[\s\S])*(?!)"])
@pytest.mark.parametrize("key", ["normalizer", "pre_tokenizer"])
def test_an_expression_that_takes_hours_is_refused(tmp_path: Path, key: str, pattern: str) -> None:
    """Before, ``predict`` took a minute, or ended with the panic of the library's regex engine."""
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    step = replace(pattern, "x", "Regex") if key == "normalizer" else split
    with pytest.raises(BadInput, match="could take long"):
        load_tokenizer(written(tmp_path, **{key: step}))

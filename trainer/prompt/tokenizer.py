"""Conversion of text to token ids by a byte-level BPE trained here or a Hugging Face tokenizer.

The only module of this package that imports ``tokenizers``. It reads local files only: it downloads
nothing and runs no code from a folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmperf_common.extras import require
from llmperf_common.files.plain_files import read_plain
from trainer.data.foreign_files import read_json_value
from trainer.data.tokens import Ids
from trainer.errors import BadInput
from trainer.prompt.foreign_model import checked_model
from trainer.prompt.foreign_tokenizer import check_added, used_parts

EXTRA = "train"
FILE = "tokenizer.json"
PADDING = "<pad>"
"""Token 0 of a tokenizer trained here."""

MIN_VOCABULARY = 257
"""Tokens of the smallest vocabulary: padding and the 256 bytes."""

LONGEST_TRAINING_TEXT = 32_768
"""Maximum characters of one text that a tokenizer is trained on; the rest of a longer text is not
used. Of 6,292 collected sources 1.6 % are longer, up to 1.2 million characters of generated,
unrolled code. They would dominate the tokenizer's merges, although prompts are cut far below this
length."""

_PATTERN = r" ?[\p{L}_]+| ?\p{N}| ?[^\s\p{L}\p{N}_]+\n?|\s+(?!\S)|\s+"
"""GPT-2's pattern, adapted to code: names keep their underscores, each digit is a piece of its own,
and a line end belongs to the punctuation before it."""

_MOST_MERGES_BYTES = 8 * 2**20
"""Maximum size of ``vocab.json`` and of ``merges.txt`` in bytes; CodeGen's have 0.8 and 0.5 MiB."""

_BATCH = 4096
"""Texts in one call of the library, to bound memory: the library returns some KB for each text."""

_RANDOM = ("dropout", "alpha", "nbest_size")
"""Attributes of the library's models that make tokens random, so that two predictions for one
launch would differ: BPE drops merges at random, and Unigram draws among the best splits. A
``tokenizer.json`` can set ``dropout``. The library has no other random step, and its models cannot
be nested."""

_PROBE = "__kernel void a(__global float *b) {\n\tb[get_global_id(0)] += 1.5f; // + 23\n}\n"
"""Code that a loaded tokenizer must turn into at least one token."""
_ODD_PROBE = (
    "\0\r\x7f \xa0\xe9e\u0301\u0416\u4e2d\u2028\ufeff\uffff\ue000\U0001f680\U0010ffff" + "a" * 300
)
"""Characters that may be unknown to a tokenizer, some that the library treats specially, and a
long word."""
_PANICS = "pyo3_runtime"
"""Module of the exception by which the library reports a panic. Its type cannot be imported, and it
is no Exception."""
_LONGEST_DETAIL = 500


@contextmanager
def _refusing(words: str) -> Iterator[None]:
    """Turn what the library raises, panics included, into BadInput; an interrupt passes through."""
    try:
        yield
    except BadInput:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != _PANICS:
            raise
        raise BadInput(
            f"{words}: {str(error)[:_LONGEST_DETAIL]}; copy the folder again, or use another "
            "checkpoint"
        ) from None


class TextTokenizer:
    """A loaded tokenizer; ids start at 0."""

    def __init__(self, tokenizer: Any, source: str = FILE) -> None:
        """Take a ``tokenizers.Tokenizer``; turn its truncation, padding and randomness off.

        Args:
            tokenizer: the library's tokenizer.
            source: path of its file, for messages.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        model = tokenizer.model  # shared with the tokenizer, not a copy
        for name in _RANDOM:
            if getattr(model, name, None) is not None:
                setattr(model, name, None)
        self._tokenizer = tokenizer
        self._source = source

    @property
    def num_tokens(self) -> int:
        """The largest id + 1: the number of rows that an embedding needs."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def padding_id(self) -> int | None:
        """The id of our padding token; None for a tokenizer that was not trained here."""
        found: int | None = self._tokenizer.token_to_id(PADDING)
        return found

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text; no token is added before or after.

        Raises:
            BadInput: The tokenizer fails on a text, such as one with a character it does not know.
        """
        found: list[Ids] = []
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            with _refusing(f"{self._source}: the tokenizer fails on a text"):
                encoded = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            found += [np.array(one.ids, dtype=np.int32) for one in encoded]
        return found

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of some ids.

        Raises:
            BadInput: The tokenizer's decoder fails on them.
        """
        numbers = [int(one) for one in ids]
        with _refusing(f"{self._source}: the tokenizer fails on some ids"):
            text: str = self._tokenizer.decode(numbers, skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        """Return the text of ``tokenizer.json``."""
        with _refusing(f"{self._source}: the tokenizer cannot be written"):
            text: str = self._tokenizer.to_str(pretty=True)
        return text

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` into ``folder``."""
        (folder / FILE).write_text(self.to_json(), encoding="utf-8")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> TextTokenizer:
    """Train a byte-level BPE; equal sets of texts give byte-identical ``tokenizer.json``.

    Args:
        texts: texts of the training kernels; duplicates count once.
        vocabulary: maximum tokens, at least ``MIN_VOCABULARY``; few texts give fewer tokens.

    Raises:
        MissingExtra: ``tokenizers`` is not installed.
    """
    library = require("tokenizers", EXTRA)
    tokenizer = library.Tokenizer(library.models.BPE())
    split = library.pre_tokenizers.Split(library.Regex(_PATTERN), "isolated")
    to_bytes = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PADDING],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Sizes are written with a blank before each digit, so " 1", " 2", ... must become tokens.
    digits = " 0 1 2 3 4 5 6 7 8 9\n" * 8
    distinct = sorted({text[:LONGEST_TRAINING_TEXT] for text in texts})
    tokenizer.train_from_iterator([*distinct, digits], trainer=trainer)
    return TextTokenizer(tokenizer)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer of a run's prompt folder or of a Hugging Face folder.

    Reads ``tokenizer.json`` if it exists. Else ``vocab.json`` and ``merges.txt`` give a byte-level
    BPE like GPT-2's and CodeGen's, with the tokens of ``added_tokens.json`` if that file exists.

    Raises:
        BadInput: The files are missing or cannot be read.
        MissingExtra: ``tokenizers`` is not installed.
    """
    library = require("tokenizers", EXTRA)
    whole = folder / FILE
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise BadInput(
            f"{folder}: no tokenizer: the folder has neither {FILE} nor vocab.json with merges.txt"
        )
    source = whole if whole.is_file() else vocabulary
    name = FILE if whole.is_file() else "vocab.json, merges.txt or added_tokens.json"
    with _refusing(f"{folder}: {name} cannot be read"):
        if whole.is_file():
            # The library gets what was checked, not the file: it reads a key that occurs twice each
            # time. The text alone is kept, because the library needs the memory.
            text = json.dumps(used_parts(read_json_value(whole)), allow_nan=False)
            tokenizer = TextTokenizer(library.Tokenizer.from_str(text), str(source))
        else:
            tokenizer = TextTokenizer(_from_merges(library, vocabulary, merges), str(source))
    _try_out(tokenizer, source)
    return tokenizer


def _try_out(tokenizer: TextTokenizer, source: Path) -> None:
    """Raise BadInput unless the tokenizer converts some short texts to ids and back.

    An unusable tokenizer is found before data is prepared for it.
    """
    found = [tokenizer.ids([text])[0] for text in (_PROBE, _ODD_PROBE, "")]
    for ids in found:
        tokenizer.text(ids)
    if not len(found[0]):
        raise BadInput(f"{source}: the tokenizer makes no token of code; use another checkpoint")


def _from_merges(library: Any, vocabulary: Path, merges: Path) -> Any:
    tokens = read_json_value(vocabulary, max_bytes=_MOST_MERGES_BYTES)
    text = read_plain(merges, max_bytes=_MOST_MERGES_BYTES).decode().replace("\r\n", "\n")
    # A token may hold a character at which splitlines would cut.
    lines = [line for line in text.split("\n") if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    checked_model({"type": "BPE", "vocab": tokens, "merges": pairs})
    tokenizer = library.Tokenizer(library.models.BPE(tokens, pairs))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    added = vocabulary.with_name("added_tokens.json")
    if added.is_file():
        wanted = read_json_value(added)
        check_added(wanted)
        # One call, because each call builds the library's search for added tokens anew.
        tokens = sorted(wanted, key=wanted.__getitem__)
        tokenizer.add_tokens([library.AddedToken(token, normalized=False) for token in tokens])
        for token, number in wanted.items():
            if tokenizer.token_to_id(token) != number:
                raise ValueError(f"added token {token[:80]!r} cannot get its id {number!r:.40}")
    return tokenizer

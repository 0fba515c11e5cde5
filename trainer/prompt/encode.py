"""Conversion of rows to tokens, for the rest of the trainer.

Decides which launches become tokens and how they are grouped. The forms of prompts are in
``paper.py``, ``compact.py`` and ``numeric.py``, the truncation of long sources in
``truncation.py``. Truncation depends on the kernel and not on the launches of a call, so that
training and prediction see the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from trainer.data.foreign_files import read_json_value
from trainer.data.tokens import Ids, Tokens
from trainer.errors import BadInput
from trainer.interface import Codes, Rows
from trainer.prompt import compact, numeric, paper
from trainer.prompt.kernel_text import KernelText, kernel_texts
from trainer.prompt.launch_numbers import LaunchNumbers, launch_numbers, widest_launches
from trainer.prompt.source_pieces import plain_source
from trainer.prompt.suffixes import Suffixes, joined, starts, text_suffixes
from trainer.prompt.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from trainer.prompt.truncation import CHARACTERS_PER_TOKEN, cut_source, is_hopeless
from trainer.regressor_config import PromptConfig

FILE = "prompt.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The tokens of the k launches that were kept out of n launches.

    Attributes:
        tokens: tokens of the k launches; a group is a kernel on a device class, with kept launches.
        kept: positions of the kept launches among the n rows, ascending, shape (k,).
        is_cut: whether the source of the launch's kernel was cut, shape (k,).
        num_truncated: number of groups whose source was cut.
        num_dropped: n - k, the number of launches longer than the context.
    """

    tokens: Tokens
    kept: npt.NDArray[np.intp]
    is_cut: npt.NDArray[np.bool_]
    num_truncated: int
    num_dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The conversion of launches to the tokens of one model.

    Attributes:
        config: form of the prompt, context, treatment of longer prompts.
        tokenizer: the model's tokenizer.
        slots: names of the model's slots of numeric tokens.
    """

    config: PromptConfig
    tokenizer: TextTokenizer
    slots: tuple[str, ...] = numeric.SLOTS

    def encode(self, rows: Rows) -> Encoded:
        """Return the tokens of the rows that fit into the context.

        Raises:
            BadInput: A kernel comes without its source.
        """
        return self._encoded(rows, keeps_all=False)

    def encode_all(self, rows: Rows) -> Encoded:
        """Return the tokens of all rows, including those that ``encode`` drops; for prediction.

        Long sources are truncated whatever ``too_long`` says. If not even a kernel's signature
        fits, the end of its prefix and the beginnings of its suffixes are cut off.

        Raises:
            BadInput: A kernel comes without its source.
        """
        return self._encoded(rows, keeps_all=True)

    def _encoded(self, rows: Rows, *, keeps_all: bool) -> Encoded:
        kernels, kernel = distinct_kernels(rows)
        prefixes = self._prefixes(kernels, keeps_all=keeps_all)
        suffix = self._suffixes(kernels, kernel, launch_numbers(rows.samples))
        prefix_length = np.array([len(ids) for ids, _ in prefixes], dtype=np.int64)
        if keeps_all:
            suffix = suffix.last(self.config.max_tokens - prefix_length[kernel])
        whole = prefix_length[kernel] + np.diff(suffix.start)
        fits = (prefix_length[kernel] > 0) & (whole <= self.config.max_tokens)
        kept = np.flatnonzero(fits)
        used, group = np.unique(kernel[kept], return_inverse=True)
        left = suffix.take(kept)
        return Encoded(
            tokens=Tokens(
                prefix_ids=joined([prefixes[number][0] for number in used]),
                prefix_start=starts(prefix_length[used]),
                suffix_ids=left.ids,
                suffix_values=left.values,
                suffix_start=left.start,
                group=group.astype(np.int64),
            ),
            kept=kept,
            is_cut=np.array([cut for _, cut in prefixes], dtype=bool)[kernel[kept]],
            num_truncated=sum(prefixes[number][1] for number in used),
            num_dropped=len(rows) - len(kept),
        )

    def _prefixes(
        self, kernels: Sequence[KernelText], *, keeps_all: bool
    ) -> list[tuple[Ids, bool]]:
        """Return each kernel's prefix and whether it was cut; a prefix that cannot fit is empty."""
        parts = [_prefix_parts(kernel, self.config) for kernel in kernels]
        texts = ["".join(part) for part in parts]
        short = [
            number
            for number, text in enumerate(texts)
            if not is_hopeless(text, self.config.max_tokens)
        ]
        whole = dict(
            zip(short, self.tokenizer.ids([texts[number] for number in short]), strict=True)
        )
        if self.config.too_long == "drop" and not keeps_all:
            return [(whole.get(number, joined([])), False) for number in range(len(kernels))]
        capacity = self.config.max_tokens - self._longest_suffixes(kernels)
        prefixes = []
        for number, most in enumerate(capacity.tolist()):
            if number in whole and len(whole[number]) <= most:
                prefixes.append((whole[number], False))
            else:
                ids = self._cut(kernels[number].name, parts[number], most)
                if keeps_all and len(ids) == 0:
                    ids = self._beginning(texts[number], most)
                prefixes.append((ids, True))
        return prefixes

    def _beginning(self, text: str, most: int) -> Ids:
        """Return the first tokens of a prefix whose kernel's signature alone is too long."""
        capacity = max(most, self.config.max_tokens // 2)
        (ids,) = self.tokenizer.ids([text[: CHARACTERS_PER_TOKEN * capacity]])
        return ids[:capacity]

    def _cut(self, kernel: str, part: tuple[str, str, str], most: int) -> Ids:
        before, after = self.tokenizer.ids([part[0], part[2]])
        left = most - len(before) - len(after)
        source = cut_source(part[1], kernel, left, self.tokenizer.ids) if left > 0 else None
        return joined([] if source is None else [before, source, after])

    def _longest_suffixes(self, kernels: Sequence[KernelText]) -> Codes:
        """Return the length of each kernel's longest suffix: of a 3-D launch with long numbers."""
        if self.config.form == "numeric":
            lengths = [numeric.most_tokens(len(kernel.arguments)) for kernel in kernels]
            return np.array(lengths, dtype=np.int64)
        wide = self._suffixes(kernels, np.arange(len(kernels)), widest_launches(kernels))
        return np.diff(wide.start)

    def _suffixes(
        self, kernels: Sequence[KernelText], kernel: Codes, numbers: LaunchNumbers
    ) -> Suffixes:
        if self.config.form == "numeric":
            return numeric.numeric_suffixes(numbers, self.slots)
        return text_suffixes(
            self.tokenizer.ids(_suffix_texts(kernels, kernel, numbers, self.config))
        )

    def save(self, folder: Path) -> None:
        """Write ``prompt.json`` and ``tokenizer.json`` into ``folder``."""
        content = {"config": self.config.model_dump(mode="json"), "slots": list(self.slots)}
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Encoder:
        """Read what ``save`` wrote.

        Raises:
            BadInput: A file is missing or damaged, or a later release wrote it.
        """
        file = folder / FILE
        try:
            content = read_json_value(file)
            config = PromptConfig.model_validate(content["config"])
            slots = tuple(map(str, content["slots"]))
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise BadInput(f"{file} cannot be read: {error}") from None
        unknown = sorted(set(slots) - set(numeric.SLOTS))
        if unknown:
            raise BadInput(
                f"{file}: slots {', '.join(unknown)} are not known to this release: "
                "a later release wrote the file; upgrade llmperf"
            )
        return cls(config=config, tokenizer=load_tokenizer(folder), slots=slots)


def new_encoder(rows: Rows, config: PromptConfig, pretrained: Path | None = None) -> Encoder:
    """Return an encoder with the tokenizer of ``pretrained``, or with one trained on ``rows``.

    Args:
        rows: rows of the train part.
        config: form and context of prompts, and the vocabulary of a tokenizer trained here.
        pretrained: folder of a Hugging Face model, or None to train a tokenizer.

    Raises:
        BadInput: A kernel comes without its source, or the folder has no tokenizer.
        MissingExtra: ``tokenizers`` is not installed.
    """
    if pretrained is not None:
        return Encoder(config=config, tokenizer=load_tokenizer(pretrained))
    kernels, _ = distinct_kernels(rows)
    texts = ["".join(_prefix_parts(kernel, config)) for kernel in kernels]
    if config.form != "numeric":
        texts += _suffix_texts(kernels, np.arange(len(kernels)), widest_launches(kernels), config)
    return Encoder(config=config, tokenizer=train_tokenizer(texts, config.vocabulary))


def distinct_kernels(rows: Rows) -> tuple[tuple[KernelText, ...], Codes]:
    """Return the distinct kernels of the rows, and each row's position in them, shape (n,).

    A kernel on two device classes counts as two kernels; two tasks with one kernel on one device
    class count as one.

    Raises:
        BadInput: A kernel comes without its source.
    """
    used, index = np.unique(rows.kernel_row, return_inverse=True)
    numbers: dict[KernelText, int] = {}
    texts = kernel_texts(rows.kernels.take(used))
    number = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return tuple(numbers), number[index]


def _prefix_parts(kernel: KernelText, config: PromptConfig) -> tuple[str, str, str]:
    """Return the prefix in three parts: before the source, the source, after the source."""
    if config.form == "paper":
        return paper.BEFORE_CODE, kernel.source, paper.AFTER_CODE
    return compact.before_code(kernel), plain_source(kernel.source), ""


def _suffix_texts(
    kernels: Sequence[KernelText], kernel: Codes, numbers: LaunchNumbers, config: PromptConfig
) -> list[str]:
    suffixes = paper.suffixes if config.form == "paper" else compact.suffixes
    return suffixes(kernels, kernel, numbers)

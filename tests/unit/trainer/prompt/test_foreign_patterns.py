"""Regular expressions of tokenizers: those of known models pass, those that could take hours do not."""

from __future__ import annotations

import pytest

from trainer.prompt.foreign_patterns import check_pattern

KNOWN = {
    "GPT-2, CodeGen": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama-3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "BLOOM": r" ?[^(\s|[.,!?])]+",
    "T5": r" {2,}",
    "digits in threes": r"\d{1,3}(?=(?:\d{3})*\b)",
    "after a digit": r"(?<=\d)(?=\p{L})",
}  # fmt: skip
SLOW = (
    r"(?:[\s\S]|[\s\S]){22}(?!)", r"([\s\S]|[\s\S])*(?!)", r"(a+)+b", r"(a?){30}b", r"(a{1,3}b?)+c", r"\s*\s*\s*(?!)",
    "a{2,}b{2,}c{2,}d", "x" * 3000, "(a|b(c+d+e+))", r"(?<x>a)\k<x>", r"(a)\1", r"\g<1>", "(?#)a", "(?~abc)", "[a",
    "a{100}{100}", "a+{9}", "a?" * 25 + "a" * 25 + "b", "(a|a)" * 25 + "b", "a{1000}b{1000}",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_expressions_of_known_models_pass(name: str) -> None:
    check_pattern(KNOWN[name])


@pytest.mark.parametrize("pattern", SLOW)
def test_an_expression_that_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="could take long"):
        check_pattern(pattern)

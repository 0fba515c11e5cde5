"""Which sources are mutated: ours, and the public corpus where this machine has it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import mutated

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_SEED_BYTES = 64 * 1024
"""Larger files are left out: a mutated megabyte tests patience, not the front end."""
MAX_SOURCE_CHARS = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutated source; ``origin`` and ``mutations`` say how it came about."""

    number: int
    text: str
    origin: str
    mutations: tuple[str, ...]


class Seeds:
    """The files to start from: half of the mutants come from ``kernels/``, half from the corpus if it is there."""

    def __init__(self, *, corpus: Path | None = None) -> None:
        self._own = sorted((REPOSITORY / "kernels").glob("*.cl"))
        self._corpus = sorted(corpus.rglob("*.cl")) if corpus is not None else []

    @property
    def num_files(self) -> tuple[int, int]:
        """Our own kernels and files of the corpus."""
        return len(self._own), len(self._corpus)

    def mutant(self, *, seed: int, number: int) -> Mutant:
        """Return mutant ``number`` of a seed: a pure function of both and of the files."""
        chance = random.Random(f"{seed}:{number}")
        (origin, text), (_, other) = self._pick(chance), self._pick(chance)
        text, names = mutated(text, other, chance)
        return Mutant(number=number, text=text[:MAX_SOURCE_CHARS], origin=origin, mutations=names)

    def _pick(self, chance: random.Random) -> tuple[str, str]:
        while True:
            files = self._corpus if self._corpus and chance.random() < 0.5 else self._own
            path = chance.choice(files)
            raw = path.read_bytes()
            if len(raw) <= MAX_SEED_BYTES:
                return path.name, raw.decode("utf-8", "replace")

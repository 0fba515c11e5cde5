"""One fuzzing run: mutants in batches, findings kept and made small, nothing left running."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from llmperf_common.failures import FailureCode
from tests.fuzz.judge import answers, count, finding
from tests.fuzz.seeds import Mutant, Seeds
from tests.fuzz.shrink import shrunk
from workers.source.parse_pool import Parsed

BATCH = 200
SHRINK_SECONDS = 60.0
_COSTLY = {f"file {one.value}" for one in (FailureCode.BUILD_TIMEOUT, FailureCode.COMPILER_CRASH)}
_COSTLY |= {FailureCode.LAUNCH_ERROR.value}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a campaign runs; ``command`` is another child than the parser's."""

    seed: int
    num_sources: int
    seconds: float
    source_timeout_s: float = 20.0
    num_children: int = 2
    command: tuple[str, ...] | None = None
    first: int = 0


@dataclass(kw_only=True)
class Result:
    """What a campaign saw. ``coded``: mutants that cost a child, which is no finding but good to look at."""

    num_sources: int = 0
    seconds: float = 0.0
    slowest_batch_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)
    coded: dict[int, str] = field(default_factory=dict)
    left_processes: tuple[str, ...] = ()


def run(rule: Rule, seeds: Seeds, keep: Path | None) -> Result:
    """Run mutants until there are enough or time is up; ``keep`` gets the failing ones, whole and made small."""
    result = Result()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    start_s = time.monotonic()
    while result.num_sources < rule.num_sources and time.monotonic() - start_s < rule.seconds:
        first = rule.first + result.num_sources
        size = min(BATCH, rule.num_sources - result.num_sources)
        _batch(
            [seeds.mutant(seed=rule.seed, number=first + one) for one in range(size)],
            rule,
            result,
            keep,
        )
    result.seconds = time.monotonic() - start_s
    result.left_processes = tuple(
        " ".join(process.cmdline())
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before
    )
    return result


def _batch(mutants: Sequence[Mutant], rule: Rule, result: Result, keep: Path | None) -> None:
    start_s = time.monotonic()
    found = _answers([one.text for one in mutants], rule)
    result.slowest_batch_s = max(result.slowest_batch_s, time.monotonic() - start_s)
    assert len(found) == len(mutants), "every source has its answer"
    result.num_sources += len(mutants)
    for mutant, parsed in zip(mutants, found, strict=True):
        counted: Counter[str] = Counter()
        count(parsed, counted)
        result.counts += counted
        if codes := _COSTLY & set(counted):
            result.coded[mutant.number] = min(codes)
            _keep(mutant, mutant.text, min(codes), keep, "coded")
        wrong = finding(parsed)
        if wrong:
            result.findings[mutant.number] = wrong
            if keep is not None:
                small = shrunk(mutant.text, lambda text: _fails(text, rule), seconds=SHRINK_SECONDS)
                _keep(mutant, small, wrong, keep, "findings")


def _answers(texts: Sequence[str], rule: Rule) -> list[Parsed]:
    return answers(
        texts,
        timeout_s=rule.source_timeout_s,
        num_children=rule.num_children,
        command=rule.command,
    )


def _fails(text: str, rule: Rule) -> bool:
    return finding(_answers([text], rule)[0]) is not None


def _keep(mutant: Mutant, small: str, wrong: str, keep: Path | None, kind: str) -> None:
    if keep is None:
        return
    folder = keep / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{mutant.number}.cl").write_text(small, encoding="utf-8", errors="surrogatepass")
    note = {"origin": mutant.origin, "mutations": mutant.mutations, "wrong": wrong}
    (folder / f"{mutant.number}.json").write_text(json.dumps(note, indent=1), encoding="utf-8")

"""The fuzzer itself: its mutants follow from the seed, its findings are made small, and a short run finds nothing.

The long one: ``python -m tests.fuzz``.
"""

from __future__ import annotations

import random

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Access, Argument, ArgumentKind, Signature
from tests.fuzz.campaign import Rule, run
from tests.fuzz.judge import finding
from tests.fuzz.mutate import MUTATIONS, tokens
from tests.fuzz.seeds import Seeds
from tests.fuzz.shrink import shrunk
from workers.source.read_kernel import ReadKernel

SAXPY = "__kernel void saxpy(__global float *y, float a) { y[get_global_id(0)] *= a; /* done */ }\n"


def test_a_seed_and_a_number_give_the_same_mutant() -> None:
    seeds = Seeds()
    assert seeds.mutant(seed=1, number=7) == seeds.mutant(seed=1, number=7)
    texts = {seeds.mutant(seed=1, number=number).text for number in range(50)}
    assert len(texts) > 45
    assert seeds.mutant(seed=2, number=7) != seeds.mutant(seed=1, number=7)


def test_tokens_make_up_the_text() -> None:
    for text in (SAXPY, "", '\0\ud800 a+++b "c\\"', "/* open", "x<<=1;//\n#define A\\\n B"):
        assert "".join(tokens(text)) == text


def test_every_mutation_takes_every_text() -> None:
    for mutation in MUTATIONS:
        changed = {mutation(SAXPY, SAXPY[::-1], random.Random(number)) for number in range(20)}
        assert changed - {SAXPY}, mutation.__name__
        for text in ("", "\n", "x", "\ud800"):
            assert isinstance(mutation(text, "", random.Random(0)), str)


def test_a_source_is_made_as_small_as_it_fails() -> None:
    text = "int a;\nint b;\nint bad;\nint c;\n" * 9
    assert shrunk(text, lambda one: "bad" in one, seconds=10) == "bad"


def _signature(**changes: object) -> Signature:
    parts: dict[str, object] = {
        "arguments": (), "dims": 1, "required_local_size": None, "static_local_bytes": 0, "static_features": {},
    }  # fmt: skip
    return Signature(**{**parts, **changes})  # type: ignore[arg-type]


def _failure(code: FailureCode, detail: str = "why") -> Failure:
    return Failure(code=code, stage=Stage.SIGNATURE, detail=detail)


def _read(**parts: object) -> ReadKernel:
    return ReadKernel(name="k", source="", build_options="", **parts)  # type: ignore[arg-type]


def test_what_counts_as_a_finding() -> None:
    assert finding(()) is None
    assert finding(_failure(FailureCode.BUILD_TIMEOUT)) is None
    assert finding(_failure(FailureCode.INTERNAL_ERROR)) is not None
    assert finding(_failure(FailureCode.BUILD_ERROR, "")) is not None
    assert finding((_read(signature=_signature()),)) is None
    assert finding((_read(),)) is not None
    assert finding((_read(signature=_signature()), _read(signature=_signature()))) is not None
    assert finding((_read(signature=_signature(dims=4)),)) is not None
    assert finding((_read(signature=_signature(static_features={"x": float("nan")})),)) is not None
    assert finding((_read(signature=_signature(required_local_size=(0, 1, 1))),)) is not None
    nothing = Argument(
        position=0, name="a", kind=ArgumentKind.SCALAR, type_name="E", scalar_type="int", vector_width=1,
        element_bytes=0, access=Access.READ, is_const=False,
    )  # fmt: skip
    assert finding((_read(signature=_signature(arguments=(nothing,))),)) is not None


def test_a_short_run_finds_nothing_and_leaves_nothing() -> None:
    """The long one: ``python -m tests.fuzz``. Seeded by kernels/ alone, so it is the same everywhere."""
    rule = Rule(seed=0, num_sources=150, seconds=60, source_timeout_s=20)
    result = run(rule, Seeds(), keep=None)
    assert result.num_sources == 150
    assert result.findings == {}
    assert result.left_processes == ()
    assert result.counts["signature"] > 30
    assert result.counts["build_error"] + result.counts["file build_error"] > 10

"""The sample of slow products: the same each time, and nothing is left out of both."""

from __future__ import annotations

import re

from tests.integration.collect.test_commit_points import POINTS, at_each
from tests.support.sampling import at_night_unless, every, numbers_of
from tests.support.wheel import REPOSITORY


def marks_of(parameter) -> set[str]:
    return {mark.name for mark in parameter.marks}


def test_each_case_is_slow_and_those_not_sampled_are_nightly() -> None:
    found = every(3, ["a", ("b", 1), "c", "d"])
    assert [one.values for one in found] == [("a",), ("b", 1), ("c",), ("d",)]
    nightly = {"slow", "nightly"}
    assert [marks_of(one) for one in found] == [{"slow"}, nightly, nightly, {"slow"}]
    assert [marks_of(one) for one in at_night_unless("a".__eq__, "ab")] == [{"slow"}, nightly]


def test_every_point_of_a_commit_is_met_at_each_change() -> None:
    sampled = [one.values for one in at_each(POINTS) if "nightly" not in marks_of(one)]
    assert {point for kind, point in sampled if kind == "sqlite"} == set(POINTS)
    assert {kind for kind, _ in sampled} == {"sqlite", "redis", "s3"}


def test_the_shares_of_a_count_are_all_of_it() -> None:
    for count in range(30):
        shares = numbers_of("a fourth", count) + numbers_of("the rest", count)
        assert sorted(shares) == list(range(1, count + 1))


def test_the_three_levels_are_what_make_runs() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    chosen = re.findall(r'\$\(PYTEST\) -m "?([^"\n]*?)"? --(?:numprocesses|timeout)', makefile)
    slow = "slow and not nightly and"
    assert chosen == ["$(TESTS)", "nightly", f"{slow} not quiet", f"{slow} quiet"]
    assert "TESTS ?= not slow and not gpu\n" in makefile

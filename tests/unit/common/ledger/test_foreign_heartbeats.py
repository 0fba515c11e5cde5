"""The table of heartbeats in a ledger that another program wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from llmperf_common.ledger.heartbeat_sql import HEARTBEAT_TABLE, read_reports
from llmperf_common.ledger.protocol import LONGEST_REPORT, MOST_REPORTS

NOW_S = 1000.0
ANY_TYPE = "CREATE TABLE workers (worker, at_s, document)"
GOOD = ("good", NOW_S, "{}")


def names(rows: Sequence[Any], table: str = HEARTBEAT_TABLE) -> list[str]:
    db = sqlite3.connect(":memory:")
    db.execute(table)
    db.executemany("INSERT INTO workers VALUES (?, ?, ?)", rows)
    return [one.worker for one in read_reports(db, now_s=NOW_S)]


@pytest.mark.parametrize(
    "row",
    [
        (5, NOW_S, "{}"),
        (None, NOW_S, "{}"),
        (b"\xff", NOW_S, "{}"),
        ("w", NOW_S, b"{}"),
        ("w", NOW_S, None),
        ("w", NOW_S, "x" * (LONGEST_REPORT + 1)),
        ("w" * (LONGEST_REPORT + 1), NOW_S, "{}"),
        ("w", "x", "{}"),
        ("w", None, "{}"),
        ("w", 9e999, "{}"),
    ],
    ids=lambda row: ascii(row)[:30],
)
def test_a_row_of_another_form_is_left_out(row: tuple[Any, ...]) -> None:
    assert names([row, GOOD], ANY_TYPE) == ["good"]


def test_rows_that_differ_in_their_types_do_not_hide_each_other() -> None:
    assert (
        names([("a", NOW_S, "{}"), ("a", NOW_S, b"x"), ("a", NOW_S, "[]")], ANY_TYPE) == ["a"] * 2
    )


def test_only_the_newest_of_many_are_read() -> None:
    rows = [(f"w{n:05}", NOW_S - n / 1000, "{}") for n in range(MOST_REPORTS + 5)]
    assert names(rows) == [f"w{n:05}" for n in range(MOST_REPORTS)]

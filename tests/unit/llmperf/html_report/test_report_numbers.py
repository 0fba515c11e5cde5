"""What a reader of a report sees: no raw Python values, titles that say something, axes that compare, data to take."""

from __future__ import annotations

import csv
import dataclasses
import html
import math
import re
from importlib.resources import files

import pytest

from llmperf.html_report import EvaluationView, Stamp, render_report
from llmperf.html_report.charts.bars import IntervalRow, error_scale, interval_chart
from llmperf.html_report.charts.csv_data import csv_address, csv_text
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import fact, fact_name, points_tick
from tests.support.factories.report_factory import (
    check_page,
    make_dataset,
    make_evaluation,
    make_metrics,
)

RAW = {
    "a mapping's or list's repr": re.compile(r"[\[{(]'|'[\]})]|': "),
    "a Python word": re.compile(r"\b(?:None|True|False|nan|inf|NaN|Infinity)\b"),
    "a class's repr": re.compile(r"np\.|<class|datetime\.|array\("),
    "a float in exponent form": re.compile(r"\d(?:\.\d+)?e[+-]\d\d"),
}
FLOAT = re.compile(r"(?<![\w.:])\d+\.\d+(?![\w.])")
MAX_DIGITS = 6


def seen_text(page: str) -> str:
    """Return what stands on the page, hints and names for screen readers included; sources and logs are not ours."""
    shown = re.sub(r"<style>.*?</style>|<pre.*?</pre>", "", page, flags=re.DOTALL)
    labels = " ".join(re.findall(r'aria-label="([^"]*)"', shown))
    return html.unescape(f"{re.sub(r'<[^>]+>', ' ', shown)} {labels}")


def raw_values(text: str) -> list[str]:
    found = [f"{what}: {match}" for what, look in RAW.items() for match in look.findall(text)]
    for match in FLOAT.findall(text):
        if len(match.replace(".", "").lstrip("0")) > MAX_DIGITS:
            found.append(f"too many digits: {match}")  # noqa: PERF401
    return found


def test_no_raw_value_is_printed() -> None:
    dataset = make_dataset(1500, 30)
    run = {
        "created_at": "2026-11-23T20:48:57.123456+00:00",
        "merged_from": ("a", "b"),
        "merged": False,
        "note": None,
        "speed_gbps": 1234.56789,
        "seconds": 0.123456789,
    }
    evaluation = dataclasses.replace(
        make_evaluation(dataset),
        run={
            "noise_floor_within_run_median_ape_percent": 3.65631411235759,
            "censored_share": {"all": 0.0123456789, "by": {"idle_sm": 0.1, "none": None}},
            "stamp": None,
        },
    )
    dataset = dataclasses.replace(dataset, run=run)
    text = seen_text(render_report(dataset=dataset, evaluation=evaluation))
    assert raw_values(text) == []
    for words in (
        "Noise floor within run median APE",
        "3.7\u00a0%",
        "all: 1.2\u00a0%, by: (idle sm: 10.0\u00a0%, none: \u2013)",
        "2026-11-23 20:48:57 UTC",
        "1230\u00a0GB/s",
        "123\u00a0ms",
    ):
        assert words in text, words


def test_the_scan_finds_raw_values() -> None:
    for bad in ("{'a': 1}", "is None", "3.65631411235759", "1e-05", "['a']", "nan %"):
        assert raw_values(bad), bad
    assert raw_values("0.000123456 12.3 % 570.86.1500 1.5e, 2025.19.4.0.18_160000") == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("share", 0.5, "50.0\u00a0%"),
        ("num_tasks", 12000, "12\u202f000"),
        ("launch_floor_ns", 1234.5, "1.23\u00a0µs"),
        ("size_bytes", 2048, "2\u00a0KiB"),
        ("is_merged", True, "yes"),
        ("hashes", (), "\u2013"),
        ("created_at", "soon", "soon"),
        ("split", "test", "test"),
        ("device", {"clock_mhz": 1980.0}, "clock mhz: 1980\u00a0MHz"),
    ],
)
def test_facts_take_their_unit_from_the_name(name: str, value: object, words: str) -> None:
    assert fact(name, value) == words


def test_names_of_facts_are_words() -> None:
    assert fact_name("launch_floor_ns") == "Launch floor"
    assert fact_name("censored_share") == "Censored share"
    assert fact_name("share") == "Share"


def test_a_wild_model_does_not_hide_the_good_ones() -> None:
    rows = [
        IntervalRow(label=f"{value} %", value=value, low=value / 2, high=value * 2, note="")
        for value in (5.0, 8.0, 1500.0)
    ]
    scale = error_scale(rows, "MAPE", points_tick)
    chart = interval_chart(rows, scale, PlotText(title="t", description="d"))
    dots = [float(x) for x in re.findall(r'class="c0 disc big" d="M([\d.]+) ', chart)]
    assert len(dots) == 3
    assert dots[1] - dots[0] > 10
    assert dots == sorted(dots)
    assert {"10\u00a0%", "100\u00a0%", "1000\u00a0%"} <= set(
        re.findall(r">([^<>]+ ?%)</text>", chart)
    )


def test_an_error_of_nothing_stays_on_the_axis() -> None:
    none = IntervalRow(label="a", value=0.0, low=0.0, high=0.0, note="")
    nan = IntervalRow(label="b", value=math.nan, low=math.nan, high=math.nan, note="")
    some = IntervalRow(label="c", value=4.0, low=0.0, high=9.0, note="")
    for rows in ([none], [nan], [none, nan, some], []):
        scale = error_scale(rows, "Regret", points_tick)
        assert scale.low > 0
        interval_chart(rows, scale, PlotText(title="t", description="d"))
    assert error_scale([none, some], "Regret", points_tick).low > 1


def test_titles_say_what_was_measured() -> None:
    dataset = make_dataset(1500, 30)
    evaluation = make_evaluation(dataset)
    wanted = "demo on h200: 30 kernels, 1\u202f500 samples, model small"
    page = render_report(dataset=dataset, evaluation=evaluation)
    assert f"<title>{wanted} · LLMPerf</title>" in page
    assert f"<h1>{wanted}</h1>" in page
    assert re.search(r"scored on the test split: \d[\d\u202f]* launches of 20 kernels", page)
    bare = render_report(dataset=dataset, evaluation=None)
    assert "<h1>demo on h200: 30 kernels, 1\u202f500 samples</h1>" in bare
    alone = render_report(dataset=None, evaluation=evaluation)
    assert re.search(
        r"<h1>demo model on h200: 20 kernels, [\d\u202f]+ samples, model small</h1>", alone
    )
    empty = EvaluationView(predictions=evaluation.predictions.slice(0, 0))
    assert "<h1>evaluation: 0 kernels, 0 samples</h1>" in render_report(
        dataset=None, evaluation=empty
    )


def test_a_page_names_its_maker() -> None:
    page = render_report(dataset=make_dataset(20, 2), evaluation=None, stamp=Stamp(version="1.2.3"))
    assert '<meta name="generator" content="llmperf 1.2.3">' in page.partition("</head>")[0]


def test_every_figure_offers_its_data() -> None:
    dataset = make_dataset(4000, 30)
    page = render_report(dataset=dataset, evaluation=make_evaluation(dataset))
    for one in re.findall(r"<figure>.*?</figure>", page, re.DOTALL):
        assert 'download="' in one.partition("<figcaption>")[2]
    for text in check_page(page).downloads:
        header, *rows = csv.reader(text.splitlines())
        assert rows
        assert len(set(header)) == len(header)
        assert {len(row) for row in rows} == {len(header)}


def test_data_are_what_the_figure_shows() -> None:
    page = render_report(
        dataset=None,
        evaluation=EvaluationView(
            predictions=make_evaluation(make_dataset(400, 6)).predictions,
            metrics=make_metrics(),
            run={},
        ),
    )
    tables = [list(csv.DictReader(text.splitlines())) for text in check_page(page).downloads]
    errors = next(table for table in tables if table and "MAPE [%]" in table[0])
    assert [(row["group"], float(row["MAPE [%]"])) for row in errors] == [
        ("small", 20.0),
        ("gbdt", 29.0),
        ("roofline", 38.0),
    ]
    points = next(table for table in tables if table and "Predicted [ns]" in table[0])
    assert {row["panel"] for row in points} == {"small", "gbdt", "roofline"}


def test_csv_is_safe_in_a_link_and_in_a_spreadsheet() -> None:
    text = csv_text(("name", "x"), [('=1+"2"\n,', 1e-7), ("#a&b%", 2.0)])
    assert list(csv.reader(text.splitlines(keepends=True)))[1] == ['\'=1+"2"\n,', "1e-07"]
    assert not set("#&%\n\"' ") & set(csv_address(text).partition(",")[2].replace("%", ""))


def test_wide_tables_show_that_they_scroll() -> None:
    style = (files("llmperf.html_report") / "page.css").read_text("utf-8")
    rule = re.search(r"\.scroll \{(.*?)\}", style, re.DOTALL)
    assert rule is not None
    assert rule.group(1).count("no-repeat local") == 2
    assert rule.group(1).count("no-repeat scroll") == 2
    assert 'content: "scroll →"' in style
    page = render_report(dataset=make_dataset(200, 5), evaluation=None)
    assert page.count("<table>") == page.count('role="region" aria-label="table"><table>')

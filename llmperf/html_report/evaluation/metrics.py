"""The head of an evaluation's report: the scored rows, and the metrics of every model.

Owns the metrics table as the evaluation wrote it, and a second table that is recomputed from the
predictions. Readers can thus check that both agree.
"""

from __future__ import annotations

import math

import numpy as np

from llmperf.html_report.charts.bars import IntervalRow, error_scale, interval_chart
from llmperf.html_report.charts.markup import (
    Html,
    definition_table,
    details,
    figure,
    join,
    nothing_to_show,
    paragraph,
    section,
    shorten,
    table,
    tag,
)
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import (
    NO_VALUE,
    SPACE,
    count,
    counted,
    fact,
    fact_name,
    percent,
    points_tick,
)
from llmperf.html_report.charts.scales import linear_scale
from llmperf.html_report.dataset.facts import words_of
from llmperf.html_report.dataset.overview import tile
from llmperf.html_report.evaluation.facts import EvaluationFacts
from llmperf.html_report.evaluation.metric_blocks import (
    HEADINGS,
    Block,
    Estimate,
    cell,
    find_blocks,
    heading,
    metric_names,
)
from llmperf_common.statistics.metrics import Scored, summarise

_MAX_ROWS = 400
_REPLICATES = 200
_FEW_FAMILIES = 10
_MAIN = (
    "num_rows",
    "num_kernels",
    "mape",
    "mape_percent",
    "median_ape",
    "median_ape_percent",
    "macro_mape_percent",
    "share_within_1_25",
    "share_within_2",
    "median_factor",
    "p90_factor",
    "spearman",
    "spearman_mean",
    "regret_mean_percent",
    "coverage",
    "family_coverage",
    "interval_width_ratio",
)
_WHOLE = {(), ("all",), ("from_10_us",), ("pooled",)}
_CHARTED = ("median_ape_percent", "mape_percent", "spearman_mean", "regret_mean_percent")


def metrics_section(facts: EvaluationFacts) -> Html:
    """Return what was evaluated and the metrics tables."""
    title, anchor = "Evaluation at a glance", "evaluation"
    given = find_blocks(facts.view.metrics, facts.model.counts(), facts.split.counts())
    # Numbers without a model or split (a noise floor, counts) are not metrics.
    given = [block for block in given if block.model or block.split] or [
        block for block in given if not set(block.values).isdisjoint(HEADINGS)
    ]
    recomputed = recompute(facts, replicates=0 if given else _REPLICATES)
    if not given and not recomputed:
        reason = "there are neither metrics nor predictions with usable times"
        return section(title, anchor, _provenance(facts), nothing_to_show("Metrics", reason))
    main = [block for block in given if block.slice in _WHOLE] or given
    parts = [_tiles(facts), _stamp(facts), _few_families(facts), _provenance(facts)]
    if main:
        caption = (
            "Metrics as the evaluation wrote them; in small print: bootstrap interval over kernel "
            "families. From 10 µs: only launches of at least 10 µs, where launch overhead does not "
            "dominate."
        )
        shown = [block for block in main if block.split == facts.shown_split] or main
        others = [block for block in main if block not in shown]
        parts += [_metric_charts(facts, shown), _metric_tables(shown, caption)]
        if others:
            parts.append(_folded("metrics on the other splits", others))
    parts.append(_recomputed(facts, recomputed, bool(main)))
    slices = [block for block in given if block not in main]
    if slices:
        parts.append(_folded("metrics by slice", slices))
    return section(title, anchor, *parts)


def _tiles(facts: EvaluationFacts) -> Html:
    rows = facts.usable & facts.split.is_value(facts.shown_split)
    per_model = facts.rows_of(facts.primary_model)
    tiles = [
        (
            "models",
            count(len(facts.model.counts())),
            f"primary: {shorten(facts.primary_model, 24)}",
        ),
        ("launches", count(int(per_model.sum())), f"of the {shorten(facts.shown_split, 20)} split"),
        ("kernels", count(len(facts.kernel.counts(rows))), "on that split"),
        ("families", count(len(facts.family.counts(rows))), "of near-duplicate kernels"),
        ("predictions", count(facts.num_rows), f"{count(int((~facts.usable).sum()))} unusable"),
    ]
    return tag("div", *(tile(*words) for words in tiles), class_="tiles")


def _stamp(facts: EvaluationFacts) -> Html:
    """Return the evaluation's own warning, which says that rows were seen in training."""
    words = facts.view.run.get("stamp")
    return tag("p", str(words), class_="warning") if words else Html("")


def _few_families(facts: EvaluationFacts) -> Html:
    """Return a warning if the split has so few families that intervals say little or nothing."""
    num_families = len(facts.family.counts(facts.rows_of(facts.primary_model)))
    if not 0 < num_families < _FEW_FAMILIES:
        return Html("")
    families = counted(num_families, "kernel family", "kernel families")
    words = (
        f"The {facts.shown_split} split has only {families}, so these numbers could be very "
        "different with other families."
    )
    return tag("p", words, class_="warning")


def _provenance(facts: EvaluationFacts) -> Html:
    level = facts.view.interval_level
    rows = [
        ("Evaluation", facts.view.title),
        (
            "Splits in the predictions",
            ", ".join(
                f"{k or '(none)'}: {count(n)}" for k, n in sorted(facts.split.counts().items())
            )
            or NO_VALUE,
        ),
        ("Interval level", percent(level) if level is not None else "not given"),
    ]
    rows += [
        (fact_name(str(name)), shorten(fact(str(name), value), 300))
        for name, value in sorted(facts.view.run.items(), key=lambda i: str(i[0]))
    ]
    return definition_table("Provenance of the evaluation.", rows)


def recompute(facts: EvaluationFacts, *, replicates: int) -> list[Block]:
    """Return the metrics of each model and split, computed from the predictions alone."""
    blocks = []
    for model in facts.models:
        for split in sorted(facts.split.counts()):
            rows = facts.usable & facts.model.is_value(model) & facts.split.is_value(split)
            if not rows.any():
                continue
            all_intervals = bool(facts.has_interval[rows].all())
            scored = Scored(
                measured_ns=facts.measured_ns[rows],
                predicted_ns=facts.predicted_ns[rows],
                low_ns=facts.low_ns[rows] if all_intervals else None,
                high_ns=facts.high_ns[rows] if all_intervals else None,
                kernel=facts.launched.codes[rows],
                family=np.unique(facts.family.codes[rows], return_inverse=True)[1].astype(np.int64),
                choice=np.full(int(rows.sum()), -1, dtype=np.int64),
                interval_level=facts.view.interval_level,
            )
            block = summarise(scored, replicates=replicates)
            found = find_blocks({model: {split: block}}, [model], [split])
            blocks += [_without_choices(one) for one in found]
    return blocks


def _without_choices(block: Block) -> Block:
    # There is no regret: the predictions do not say which rows differ in local size only.
    kept = {
        k: v for k, v in block.values.items() if k != "num_choices" and not k.startswith("regret")
    }
    return Block(model=block.model, split=block.split, slice=block.slice, values=kept)


def _population(block: Block) -> str:
    return {(): "all", ("pooled",): "all", ("from_10_us",): f"from 10{SPACE}µs"}.get(
        block.slice, " · ".join(words_of(part) for part in block.slice)
    )


def _metric_tables(blocks: list[Block], caption: str) -> Html:
    """Return the main metrics, and the others folded, because one table of all is too wide."""
    names = metric_names(blocks)
    main = [name for name in names if name in _MAIN] or names
    others = [name for name in names if name not in main]
    shown = _metric_table(blocks, caption, main)
    if not others:
        return shown
    folded = _metric_table(blocks, "Other metrics of the same rows.", others)
    return join([shown, details(f"Table: other metrics ({len(others)})", folded)])


def _metric_table(blocks: list[Block], caption: str, names: list[str]) -> Html:
    rows = [
        (
            shorten(block.model or "(no model)", 40),
            shorten(block.split or NO_VALUE, 24),
            shorten(_population(block), 60),
            *(cell(name, block.values.get(name)) for name in names),
        )
        for block in blocks[:_MAX_ROWS]
    ]
    if len(blocks) > _MAX_ROWS:
        caption += f" The first {_MAX_ROWS} of {count(len(blocks))} rows."
    return table(caption, ("Model", "Split", "Rows of", *map(heading, names)), rows, align="lll")


def _metric_charts(facts: EvaluationFacts, blocks: list[Block]) -> Html:
    whole = [block for block in blocks if block.slice != ("from_10_us",)]
    whole = [block for block in whole if block.split == facts.shown_split] or whole
    charts = [chart for name in _CHARTED if (chart := _metric_chart(whole, name))]
    if not charts:
        return Html("")
    caption = (
        f"Main metrics by model, all launches of the {facts.shown_split} split: a dot with its "
        "interval over kernel families, if given. Errors and regret have logarithmic axes, so that "
        "errors of 5 % and of 1,500 % fit one axis; values near 0 are drawn at the left edge. "
        "Small errors and regrets are good, and so are rank correlations near 1. The table "
        "below has the numbers."
    )
    return figure(charts, caption, columns=2)


def _metric_chart(blocks: list[Block], name: str) -> Html | None:
    chosen = [(block, block.values[name]) for block in blocks if name in block.values]
    splits = {block.split for block, _ in chosen}
    rows = [
        _interval_row(block, estimate, len(splits) > 1, name) for block, estimate in chosen[:24]
    ]
    if not rows:
        return None
    is_rank = name.startswith("spearman")
    scale = (
        linear_scale(
            min(0.0, *(r.low if math.isfinite(r.low) else r.value for r in rows)),
            1.0,
            heading(name),
        )
        if is_rank
        else error_scale(rows, heading(name), points_tick)
    )
    words = "; ".join(f"{row.label}: {row.note}" for row in rows)
    return interval_chart(
        rows,
        scale,
        PlotText(title=f"{heading(name)} by model", description=words, heading=heading(name)),
        note_heading="value",
    )


def _interval_row(block: Block, estimate: Estimate, with_split: bool, name: str) -> IntervalRow:
    label = f"{block.model}, {block.split}" if with_split else block.model
    bare = Estimate(value=estimate.value)
    return IntervalRow(
        label=label or "(no model)",
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        note=cell(name, bare),
    )


def _recomputed(facts: EvaluationFacts, blocks: list[Block], is_second: bool) -> Html:
    if not blocks:
        reason = "no prediction has a usable measured and a usable predicted time"
        return nothing_to_show("Recomputed metrics", reason)
    num_bad = int((~facts.usable).sum())
    caption = (
        "Metrics of all launches, recomputed from the predictions for this page"
        + (
            ""
            if is_second
            else f"; in small print: bootstrap over kernel families, {_REPLICATES} draws"
        )
        + f". {count(num_bad)} predictions without a positive measured and predicted time are left "
        "out. "
        "Launches timed in batches are included here, but may be left out of the evaluation's own "
        "metrics."
    )
    recomputed = _metric_tables(blocks, caption)
    if is_second:
        return details("Table: the same metrics recomputed from the predictions", recomputed)
    note = paragraph(
        "The evaluation has no metrics of its own; these were computed from its predictions."
    )
    return join([note, _metric_charts(facts, blocks), recomputed])


def _folded(name: str, blocks: list[Block]) -> Html:
    caption = f"{name[0].upper()}{name[1:]}, as the evaluation wrote them."
    return details(f"Table: {name}", _metric_table(blocks, caption, metric_names(blocks)))

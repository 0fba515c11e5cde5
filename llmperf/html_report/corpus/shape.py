"""The kernels of a corpus by dimensions, arguments (kind and type) and sizes.

All figures cover the kernels whose arguments could be read, launchable or not; the size of the
source covers all kernels with a source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.distribution import Layer, histogram_chart
from llmperf.html_report.charts.markup import (
    Html,
    figure,
    join,
    nothing_to_show,
    section,
    side_by_side,
    table,
)
from llmperf.html_report.charts.points import SMALL, PlotText
from llmperf.html_report.charts.quantities import (
    Floats,
    bytes_tick,
    count,
    count_tick,
    quantiles,
    share,
    short,
)
from llmperf.html_report.charts.scales import Scale, linear_scale, log_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.dataset.facts import words_of
from llmperf.html_report.views import CorpusView
from llmperf_common.records import Argument, ArgumentKind, Signature
from workers.corpus.stats import CorpusStats

_MAX_TYPES = 14
_MAX_ARGUMENTS = 30
_PARTS = ("buffers", "scalars", "others")


def shape_section(view: CorpusView, stats: CorpusStats) -> Html:
    """Return the figures of dimensions, arguments and sizes."""
    title, anchor = "Dimensions, arguments and sizes", "shape"
    signatures = [one.signature for one in view.corpus.kernels if one.signature is not None]
    if not signatures:
        reason = "the arguments of no kernel could be read"
        return section(title, anchor, nothing_to_show(title, reason))
    return section(
        title,
        anchor,
        _arguments(signatures),
        side_by_side(_dimensions(signatures), _kinds(signatures, stats)),
        _sizes(view, signatures),
    )


def _arguments(signatures: Sequence[Signature]) -> Html:
    arguments = [argument for one in signatures for argument in one.arguments]
    kinds = Counter(argument.kind for argument in arguments)
    by_kind = [
        Bar(label=words_of(kind.value), counts=_split(kind, number))
        for kind, number in kinds.most_common()
    ]
    types: dict[str, Counter[int]] = {}
    for argument in arguments:
        types.setdefault(_type_words(argument), Counter())[_part(argument.kind)] += 1
    ordered = sorted(types.items(), key=lambda item: (-item[1].total(), item[0]))
    by_type = [Bar(label=name, counts=tuple(row[i] for i in range(3))) for name, row in ordered]
    rest = by_type[_MAX_TYPES:]
    if rest:
        total = tuple(sum(bar.counts[i] for bar in rest) for i in range(3))
        by_type = [*by_type[:_MAX_TYPES], Bar(label=f"{len(rest)} other types", counts=total)]
    charts = [
        _bars(by_kind, "Arguments by kind", "By kind"),
        _bars(by_type, "Arguments by element type", "By element type"),
    ]
    caption = (
        f"Arguments of {count(len(signatures))} kernels (n = {count(len(arguments))} arguments). "
        "Right: the type with typedefs resolved; for a buffer, the type of one element. A "
        "structure of one scalar type counts as that type."
    )
    return figure(charts, caption, legend=legend(_PARTS))


def _bars(bars: Sequence[Bar], title: str, heading: str) -> Html:
    words = "; ".join(f"{bar.label}: {count(sum(bar.counts))}" for bar in bars)
    text = PlotText(title=title, description=words, heading=heading)
    return stacked_bar_chart(bars, _PARTS, text, as_share=False, label="Arguments")


def _part(kind: ArgumentKind) -> int:
    return 0 if kind.is_buffer else 1 if kind is ArgumentKind.SCALAR else 2


def _split(kind: ArgumentKind, number: int) -> tuple[int, ...]:
    return tuple(number if i == _part(kind) else 0 for i in range(3))


def _type_words(argument: Argument) -> str:
    if not argument.scalar_type:
        return "(none)"
    lanes = argument.vector_width
    return f"{argument.scalar_type}{lanes}" if lanes in {2, 3, 4, 8, 16} else argument.scalar_type


def _dimensions(signatures: Sequence[Signature]) -> Html:
    total = len(signatures)
    rows = []
    for dims in (1, 2, 3):
        chosen = [one for one in signatures if one.dims == dims]
        fixed = sum(one.required_local_size is not None for one in chosen)
        local = sum(one.static_features.get("uses_local", 0.0) > 0 for one in chosen)
        number = len(chosen)
        rows.append((f"{dims}-D", count(number), share(number, total), count(fixed), count(local)))
    caption = (
        f"NDRange dimensions of the kernels (n = {count(total)}): the highest dimension whose id "
        "or size the kernel reads."
    )
    headers = ("NDRange", "Kernels", "Share", "Fixed work-group", "Use local memory")
    return table(caption, headers, rows)


def _kinds(signatures: Sequence[Signature], stats: CorpusStats) -> Html:
    having = Counter(kind for one in signatures for kind in {arg.kind for arg in one.arguments})
    rows = [
        (
            words_of(kind.value),
            count(number),
            share(number, len(signatures)),
            count(stats.arguments_by_kind.get(kind.value, 0)),
        )
        for kind, number in having.most_common()
    ]
    without = sum(not one.arguments for one in signatures)
    rows.append(("no argument", count(without), share(without, len(signatures)), count(0)))
    headers = ("Kind", "Kernels that have one", "Share", "Arguments")
    return table(f"Argument kinds (n = {count(len(signatures))} kernels).", headers, rows)


def _sizes(view: CorpusView, signatures: Sequence[Signature]) -> Html:
    source = np.array(
        [float(len(one.source.encode())) for one in view.corpus.kernels if one.source]
    )
    arguments = np.array([float(len(one.arguments)) for one in signatures])
    tokens = np.array([one.static_features.get("source_tokens", 0.0) for one in signatures])
    most = min(_MAX_ARGUMENTS, int(arguments.max(initial=1.0)))
    places = linear_scale(-0.5, most + 0.5, "Arguments", short, is_count=True)
    charts = [
        _histogram(source, log_scale(source, "Bytes", bytes_tick), "Source"),
        _histogram(arguments, places, "Arguments per kernel", num_bins=most + 1),
        _histogram(tokens, log_scale(tokens, "Tokens", count_tick), "Tokens with called functions"),
    ]
    quartiles = quantiles(source, 0.25, 0.5, 0.75) if source.size else [0.0, 0.0, 0.0]
    caption = (
        "Sizes of the kernels: bytes of the source that a kernel needs (quartiles "
        f"{', '.join(count(value) for value in quartiles)}), number of arguments (more than {most} "
        f"are counted as {most}), and tokens of the kernel and the functions it calls. Kernels of "
        "one file share its typedefs and macros, so the sum of bytes exceeds the size of the files."
    )
    return join([figure(charts, caption, columns=3)])


def _histogram(values: Floats, x: Scale, heading: str, *, num_bins: int = 30) -> Html:
    middle = short(float(np.median(values))) if values.size else "0"
    words = f"{count(len(values))} kernels, median {middle}"
    text = PlotText(title=f"{heading}: distribution", description=words, heading=heading)
    layers = [Layer(name="kernels", values=values)]
    return histogram_chart(layers, x, text, num_bins=num_bins, shape=SMALL, label="Kernels")

"""The kernels of a corpus that cannot be launched, with reasons, and the files without a kernel.

Owns those tables and their examples. All texts in them are untrusted and shortened.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from llmperf.html_report.charts.markup import (
    Html,
    details,
    join,
    listing,
    nothing_to_show,
    paragraph,
    section,
    shorten,
    table,
)
from llmperf.html_report.charts.quantities import count, share
from llmperf.html_report.dataset.facts import words_of
from llmperf.html_report.views import CorpusView
from llmperf_common.failures import FAILURE_MEANINGS, FailureCode
from llmperf_common.records import ArgumentKind, Kernel
from workers.corpus.stats import CorpusStats, defined_macros

_EXAMPLES = 3
_DETAIL_CHARS = 900
_MAX_SKIPPED = 200
_MAX_MACROS = 40
_SPECIFICS = re.compile(r"'[^']*'|\d+")
_REFUSED = (
    ArgumentKind.IMAGE,
    ArgumentKind.SAMPLER,
    ArgumentKind.PIPE,
    ArgumentKind.STRUCT,
    ArgumentKind.OTHER,
)


def failures_section(view: CorpusView, stats: CorpusStats) -> Html:
    """Return failures by code with examples, and skipped files by reason."""
    return section(
        "What cannot be launched", "failures", _codes(view, stats), _refused(view), _skipped(view)
    )


def macros_section(view: CorpusView, stats: CorpusStats) -> Html:
    """Return the macros that LLMPerf defined because a kernel's host program would define them."""
    title, anchor = "Inferred macros", "macros"
    if not stats.macros:
        return section(title, anchor, nothing_to_show(title, "no kernel needed any"))
    first: dict[str, Kernel] = {}
    for kernel in view.corpus.kernels:
        for macro in defined_macros(kernel):
            first.setdefault(macro, kernel)
    rows = [
        (
            shorten(macro, 40),
            count(number),
            shorten(first[macro].name, 40),
            shorten(f"{first[macro].suite} · {first[macro].path}", 90),
        )
        for macro, number in list(stats.macros.items())[:_MAX_MACROS]
    ]
    caption = (
        f"Definitions in the build options (n = {count(len(stats.macros))}, in "
        f"{count(stats.num_with_macros)} kernels; the {len(rows)} commonest). A name without a "
        "value is defined as 1. The values are guesses that make the kernel compile, not the "
        "values that its author used."
    )
    headers = ("Definition", "Kernels", "For example", "In")
    return section(title, anchor, table(caption, headers, rows, align="wrww"))


def _codes(view: CorpusView, stats: CorpusStats) -> Html:
    if not stats.failures_by_code:
        return nothing_to_show("Failures", "every kernel can be launched")
    failed: dict[FailureCode, list[Kernel]] = {}
    for kernel in view.corpus.kernels:
        if kernel.failure is not None:
            failed.setdefault(kernel.failure.code, []).append(kernel)
    ordered = sorted(failed.items(), key=lambda item: (-len(item[1]), item[0].value))
    rows = [
        (
            code.value,
            count(len(kernels)),
            share(len(kernels), stats.num_kernels),
            count(sum(one.signature is not None for one in kernels)),
            FAILURE_MEANINGS[code],
        )
        for code, kernels in ordered
    ]
    number = sum(stats.failures_by_code.values())
    caption = (
        f"Kernels that cannot be launched, by code (n = {count(number)} of "
        f"{count(stats.num_kernels)}). Each such kernel gives one failed row in a "
        "dataset."
    )
    headers = ("Code", "Kernels", "Share", "Arguments read", "Meaning")
    listed = table(caption, headers, rows, align="lrrrp")
    return join([listed, *(_examples(code, kernels) for code, kernels in ordered)])


def _examples(code: FailureCode, kernels: Sequence[Kernel]) -> Html:
    """Return one kernel for each of the commonest reasons.

    A reason is the first line of the detail without names and numbers.
    """
    by_reason: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        detail = kernel.failure.detail if kernel.failure else ""
        by_reason.setdefault(_SPECIFICS.sub("", detail.partition("\n")[0]), []).append(kernel)
    chosen = sorted(by_reason.values(), key=lambda one: -len(one))[:_EXAMPLES]
    parts = []
    for same in chosen:
        kernel = same[0]
        head = f"{shorten(kernel.name, 60)} · {shorten(kernel.path, 120)}"
        if len(same) > 1:
            head += f" · and {count(len(same) - 1)} more for the same reason"
        detail = kernel.failure.detail if kernel.failure else ""
        parts.append(join([paragraph(head), listing(shorten(detail, _DETAIL_CHARS))]))
    return details(
        f"{code.value}: {len(parts)} of {count(len(kernels))} kernels as examples", *parts
    )


def _refused(view: CorpusView) -> Html:
    signatures = [
        one.signature
        for one in view.corpus.kernels
        if one.failure is not None and one.signature is not None
    ]
    having = Counter(kind for one in signatures for kind in {arg.kind for arg in one.arguments})
    rows = [
        (words_of(kind.value), count(having[kind]), share(having[kind], len(signatures)))
        for kind in sorted(_REFUSED, key=lambda kind: -having[kind])
        if having[kind]
    ]
    if not rows:
        return Html("")
    caption = (
        f"Kinds of arguments that LLMPerf cannot create (n = {count(len(signatures))} kernels; a "
        "kernel can have several kinds)."
    )
    return table(caption, ("Argument", "Kernels", "Share"), rows)


def _skipped(view: CorpusView) -> Html:
    skipped = view.corpus.skipped
    if not skipped:
        return nothing_to_show("Skipped files", "every file has a kernel")
    by_reason: dict[str, list[str]] = {}
    for path, reason in skipped:
        by_reason.setdefault(reason.partition(":")[0], []).append(path)
    rows = [
        (
            reason,
            count(len(paths)),
            ", ".join(shorten(path, 60) for path in paths[:_EXAMPLES]),
        )
        for reason, paths in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    caption = f"Files without a kernel, by reason (n = {count(len(skipped))})."
    listed = [(shorten(path, 120), shorten(reason, 200)) for path, reason in skipped[:_MAX_SKIPPED]]
    which = f"the first {_MAX_SKIPPED} of them" if len(skipped) > _MAX_SKIPPED else "all of them"
    return join(
        [
            table(caption, ("Reason", "Files", "For example"), rows, align="lrw"),
            details(
                f"Skipped files: {which}",
                table("Skipped files.", ("File", "Reason"), listed, align="ww"),
            ),
        ]
    )

"""Count what a corpus holds.

Owns the statistics of ``llmperf corpus stats``; ``llmperf/html_report/corpus/`` draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmperf_common.families.families import family_sizes
from llmperf_common.records import Kernel
from workers.corpus.parquet import Corpus
from workers.device.opencl.build_options import option_words

_PERCENTILES = (0, 10, 50, 90, 99, 100)
FAMILY_BINS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 50), (51, None))
"""Ranges (first, last) of family sizes that are counted together; None: no upper limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStats:
    """Counts of a corpus.

    ``num_usable``: kernels without failure. ``num_signatures``: kernels whose arguments could be
    read, launchable or not; the counts of dimensions and arguments cover these. ``source_bytes``
    and ``arguments_per_kernel``: percentiles over kernels. ``macros``: number of kernels for each
    definition in their build options.
    """

    num_files: int
    num_skipped: int
    num_kernels: int
    num_usable: int
    num_signatures: int
    num_families: int
    largest_family: int
    kernels_by_suite: Mapping[str, int]
    kernels_by_dims: Mapping[str, int]
    kernels_by_family_size: Mapping[str, int]
    arguments_by_kind: Mapping[str, int]
    arguments_by_type: Mapping[str, int]
    failures_by_code: Mapping[str, int]
    skipped_by_reason: Mapping[str, int]
    num_with_macros: int
    macros: Mapping[str, int]
    source_bytes: Mapping[str, int]
    arguments_per_kernel: Mapping[str, int]


def corpus_stats(corpus: Corpus) -> CorpusStats:
    """Return the counts of a corpus."""
    kernels = corpus.kernels
    signatures = [one.signature for one in kernels if one.signature is not None]
    failures = [one.failure for one in kernels if one.failure is not None]
    arguments = [argument for one in signatures for argument in one.arguments]
    sizes = family_sizes({one.kernel_id: one.family_id for one in kernels})
    macros = [defined_macros(one) for one in kernels]
    return CorpusStats(
        num_files=len({(one.suite, one.path) for one in kernels}),
        num_skipped=len(corpus.skipped),
        num_kernels=len(kernels),
        num_usable=len(kernels) - len(failures),
        num_signatures=len(signatures),
        num_families=len(sizes),
        largest_family=max(sizes.values(), default=0),
        kernels_by_suite=_counted(one.suite for one in kernels),
        kernels_by_dims=_counted(str(one.dims) for one in signatures),
        kernels_by_family_size=kernels_by_family_size(sizes.values()),
        arguments_by_kind=_counted(one.kind.value for one in arguments),
        arguments_by_type=_counted(one.scalar_type or "(none)" for one in arguments),
        failures_by_code=_counted(one.code.value for one in failures),
        skipped_by_reason=_counted(reason.partition(":")[0] for _, reason in corpus.skipped),
        num_with_macros=sum(bool(one) for one in macros),
        macros=dict(Counter(name for one in macros for name in one).most_common()),
        source_bytes=_percentiles(sorted(len(one.source.encode()) for one in kernels)),
        arguments_per_kernel=_percentiles(sorted(len(one.arguments) for one in signatures)),
    )


def defined_macros(kernel: Kernel) -> tuple[str, ...]:
    """Return the macros that a kernel's build options define, as ``NAME`` or ``NAME=VALUE``."""
    words = option_words(kernel.build_options)
    return tuple(word.removeprefix("-D") for word in words if len(word) > 2 and word[:2] == "-D")


def kernels_by_family_size(sizes: Iterable[int]) -> dict[str, int]:
    """Return the number of kernels in families of each size, by the names of ``FAMILY_BINS``.

    >>> kernels_by_family_size([1, 1, 4, 60])
    {'1': 2, '2': 0, '3-5': 4, '6-10': 0, '11-50': 0, '51 and more': 60}
    """
    found = {family_bin_words(low, high): 0 for low, high in FAMILY_BINS}
    for size in sizes:
        for low, high in FAMILY_BINS:
            if low <= size and (high is None or size <= high):
                found[family_bin_words(low, high)] += size
    return found


def family_bin_words(low: int, high: int | None) -> str:
    """Return the name of a bin of ``FAMILY_BINS``."""
    if high is None:
        return f"{low} and more"
    return str(low) if low == high else f"{low}-{high}"


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _percentiles(ordered: Sequence[int]) -> dict[str, int]:
    last = len(ordered) - 1
    return {f"p{share}": ordered[round(last * share / 100)] for share in _PERCENTILES if ordered}

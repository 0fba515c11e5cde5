"""The corpus: every kernel of some sources, with signature, family and id.

Owns how sources become ``Kernel``s, what a bad file costs (one failed kernel, never the corpus) and the
statistics. Files: ``corpus_files.py``; parsing children: ``parse_pool.py``; Parquet: ``corpus_parquet.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.families import assign_families, family_sizes
from llmperf_common.ids import kernel_id, sha256_hex
from llmperf_common.records import Kernel, Signature
from workers.corpus_files import CorpusError, SourceFile, find_files
from workers.corpus_parquet import Corpus, is_corpus_file, read_corpus, write_corpus
from workers.parse_pool import Parsed, parse_sources
from workers.signature import NamedSignature, read_signatures

__all__ = [
    "Corpus",
    "CorpusError",
    "CorpusStats",
    "corpus_sha256",
    "corpus_stats",
    "kernels_from_source",
    "read_corpus",
    "read_sources",
    "write_corpus",
]

_PERCENTILES = (0, 10, 50, 90, 99, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStats:
    """What a corpus holds, in counts; ``source_bytes`` are percentiles over its files."""

    num_files: int
    num_skipped: int
    num_kernels: int
    num_usable: int
    num_families: int
    largest_family: int
    kernels_by_suite: Mapping[str, int]
    kernels_by_dims: Mapping[str, int]
    arguments_by_kind: Mapping[str, int]
    failures_by_code: Mapping[str, int]
    source_bytes: Mapping[str, int]


def read_sources(
    sources: Sequence[str | os.PathLike[str]],
    *,
    suite: str | None = None,
    build_options: str = "",
    num_children: int | None = None,
) -> Corpus:
    """Read every kernel of some sources.

    Args:
        sources: ``.cl`` files, folders (searched to the bottom) and corpora written by ``write_corpus``.
        suite: the suite of all kernels from files and folders; by default each source's folder name.
        build_options: for the kernels from files and folders, as for the device's compiler.
        num_children: parsing processes at once; by default as many as are useful.

    Returns:
        The kernels sorted by id, each once. A file that cannot be read or parsed is one kernel with a
        failure; a file without any kernel is listed in ``skipped``.

    Raises:
        CorpusError: A source is missing or unreadable as a whole, or there is no kernel at all.
    """
    paths = [Path(one) for one in sources]
    corpora = [read_corpus(path) for path in paths if is_corpus_file(path)]
    if len(corpora) == len(paths) == 1:
        return corpora[0]
    files = [file for path in paths if not is_corpus_file(path) for file in find_files(path, suite)]
    texts = [file.text for file in files if file.text is not None]
    answers = iter(parse_sources(texts, build_options, num_children=num_children))
    kernels = [kernel for corpus in corpora for kernel in corpus.kernels]
    skipped = [entry for corpus in corpora for entry in corpus.skipped]
    for file in files:
        parsed = next(answers) if file.text is not None else _unreadable(file)
        if isinstance(parsed, tuple) and not parsed:
            reason = "no __kernel function" if file.text and file.text.strip() else "empty file"
            skipped.append((file.path, reason))
        kernels += _kernels_of(file, parsed, build_options)
    if not kernels:
        raise CorpusError(_no_kernel(paths, skipped))
    return _corpus(kernels, skipped)


def kernels_from_source(
    source: str, *, path: str, suite: str, build_options: str = ""
) -> tuple[Kernel, ...]:
    """Read the kernels of one text in this process, each its own family.

    For a single file that its user wants an answer about: no child, so a crash of libclang is a crash.
    """
    raw = source.encode("utf-8", "replace")
    file = SourceFile(path=path, suite=suite, sha256=sha256_hex(raw), text=source, problem="")
    return tuple(_kernels_of(file, read_signatures(source, build_options), build_options))


def corpus_sha256(kernels: Iterable[Kernel]) -> str:
    """Return the identity of a set of kernels: where they were read from and in what order is no part."""
    return sha256_hex("\n".join(sorted(kernel.kernel_id for kernel in kernels)).encode())


def corpus_stats(corpus: Corpus) -> CorpusStats:
    """Count what a corpus holds."""
    signatures = [one.signature for one in corpus.kernels if one.signature is not None]
    failures = [one.failure for one in corpus.kernels if one.failure is not None]
    files = {(one.suite, one.path): len(one.source.encode()) for one in corpus.kernels}
    sizes = family_sizes({one.kernel_id: one.family_id for one in corpus.kernels})
    return CorpusStats(
        num_files=len(files),
        num_skipped=len(corpus.skipped),
        num_kernels=len(corpus.kernels),
        num_usable=len(signatures),
        num_families=len(sizes),
        largest_family=max(sizes.values(), default=0),
        kernels_by_suite=_counted(one.suite for one in corpus.kernels),
        kernels_by_dims=_counted(str(one.dims) for one in signatures),
        arguments_by_kind=_counted(arg.kind.value for one in signatures for arg in one.arguments),
        failures_by_code=_counted(one.code.value for one in failures),
        source_bytes=_percentiles(sorted(files.values())),
    )


def _corpus(kernels: Sequence[Kernel], skipped: Sequence[tuple[str, str]]) -> Corpus:
    kept: dict[str, Kernel] = {}
    for kernel in sorted(kernels, key=lambda one: (one.kernel_id, one.suite, one.path)):
        kept.setdefault(kernel.kernel_id, kernel)
    families = assign_families([(one.kernel_id, one.source, one.name) for one in kept.values()])
    return Corpus(
        kernels=tuple(replace(one, family_id=families[one.kernel_id]) for one in kept.values()),
        sha256=corpus_sha256(kept.values()),
        skipped=tuple(sorted(set(skipped))),
    )


def _kernels_of(file: SourceFile, parsed: Parsed, build_options: str) -> list[Kernel]:
    if isinstance(parsed, Failure):
        parsed = (NamedSignature(name=Path(file.path).stem, signature=parsed),)
    return [_kernel(file, one.name, one.signature, build_options) for one in parsed]


def _kernel(
    file: SourceFile, name: str, outcome: Signature | Failure, build_options: str
) -> Kernel:
    # The bytes of a file that is no text still tell it from others.
    source = file.text if file.text is not None else ""
    identity = source if file.text is not None else f"sha256:{file.sha256}"
    identifier = kernel_id(name=name, source=identity, build_options=build_options)
    return Kernel(
        kernel_id=identifier,
        name=name,
        source=source,
        source_sha256=sha256_hex(source.encode()) if file.text is not None else file.sha256,
        path=file.path,
        suite=file.suite,
        family_id=identifier,
        build_options=build_options,
        signature=outcome if isinstance(outcome, Signature) else None,
        failure=outcome if isinstance(outcome, Failure) else None,
    )


def _unreadable(file: SourceFile) -> Failure:
    return Failure(code=FailureCode.BUILD_ERROR, stage=Stage.SIGNATURE, detail=file.problem)


def _no_kernel(paths: Sequence[Path], skipped: Sequence[tuple[str, str]]) -> str:
    where = ", ".join(str(path) for path in paths)
    listed = "; ".join(f"{path}: {reason}" for path, reason in skipped[:5])
    return (
        f"{where or 'no source given'}: no kernel found ({listed or 'no file'}): "
        "name a file or folder with __kernel functions"
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _percentiles(ordered: Sequence[int]) -> dict[str, int]:
    last = len(ordered) - 1
    return {f"p{share}": ordered[round(last * share / 100)] for share in _PERCENTILES if ordered}

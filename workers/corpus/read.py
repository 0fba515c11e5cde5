"""Read every kernel of some sources, with signature, family and id.

Turns sources into ``Kernel``s. A bad file costs one failed kernel, never the corpus.
``corpus/sources.py`` finds the files, ``parse_pool.py`` parses them, ``corpus/parquet.py`` stores
the corpus, ``corpus/stats.py`` counts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.families.families import assign_families
from llmperf_common.ids import kernel_id, sha256_hex
from llmperf_common.records import Kernel
from llmperf_common.text_limits import MAX_TEXT_BYTES, length_problem
from workers.corpus.files import CorpusError, SourceFile
from workers.corpus.parquet import Corpus, is_corpus_file, read_corpus, write_corpus
from workers.corpus.sources import find_sources
from workers.source.parse_pool import Parsed, parse_sources
from workers.source.read_kernel import ReadKernel

_logger = logging.getLogger(__name__)

__all__ = [
    "Corpus",
    "CorpusError",
    "corpus_sha256",
    "read_corpus",
    "read_kernels",
    "read_sources",
    "write_corpus",
]


def read_sources(
    sources: Sequence[str | os.PathLike[str]],
    *,
    suite: str | None = None,
    build_options: str = "",
    num_children: int | None = None,
) -> Corpus:
    """Read every kernel of some sources.

    Args:
        sources: ``.cl`` files, folders (with all folders below), tar and zip archives, git
            directories, and corpora written by ``write_corpus``.
        suite: the suite of all kernels except those of corpora; by default the name of each folder
            or archive.
        build_options: options for the device's compiler, for all kernels except those of corpora.
        num_children: parsing processes at a time; by default as many as are useful.

    Returns:
        The kernels sorted by id, each once. A file that cannot be read or parsed becomes one kernel
        with a failure; a file without a kernel is listed in ``skipped``.

    Raises:
        CorpusError: A source is missing or unreadable as a whole, or there is no kernel at all.
    """
    paths = [Path(one) for one in sources]
    if len(paths) == 1 and is_corpus_file(paths[0]):
        return read_corpus(paths[0])
    kernels, skipped = read_kernels(
        paths, suite=suite, build_options=build_options, num_children=num_children
    )
    if not kernels:
        raise CorpusError(no_kernel(paths, skipped))
    return _corpus(kernels, skipped)


def read_kernels(
    sources: Sequence[str | os.PathLike[str]],
    *,
    suite: str | None = None,
    build_options: str = "",
    num_children: int | None = None,
    only: Collection[str] | None = None,
) -> tuple[list[Kernel], list[tuple[str, str]]]:
    """Read the kernels of some sources unmerged: ids may repeat, and each kernel is its own family.

    Args:
        sources: as for ``read_sources``.
        suite: as for ``read_sources``.
        build_options: as for ``read_sources``.
        num_children: as for ``read_sources``.
        only: names, without folders, of the files to parse; None for all. Corpora are read whole.

    Returns:
        The kernels, and the files without a kernel as (path, reason).

    Raises:
        CorpusError: A source is missing or unreadable as a whole.
    """
    if suite and (problem := length_problem("the name of the suite", suite, MAX_TEXT_BYTES)):
        raise CorpusError(f"{problem}: choose a shorter one")
    paths = [Path(one) for one in sources]
    corpora = [read_corpus(path) for path in paths if is_corpus_file(path)]
    found = [find_sources(path, suite) for path in paths if not is_corpus_file(path)]
    files = [
        file
        for one in found
        for file in one.files
        if only is None or PurePosixPath(file.path).name in only
    ]
    _logger.debug("%d corpora and %d source files to parse", len(corpora), len(files))
    texts = [file.text for file in files if file.text is not None]
    answers = iter(parse_sources(texts, build_options, num_children=num_children))
    kernels = [kernel for corpus in corpora for kernel in corpus.kernels]
    skipped = [entry for corpus in corpora for entry in corpus.skipped]
    skipped += [entry for one in found for entry in one.skipped]
    for file in files:
        parsed = next(answers) if file.text is not None else _unreadable(file)
        if isinstance(parsed, tuple) and not parsed:
            skipped.append((file.path, why_no_kernel(file)))
        kernels += kernels_of(file, parsed, build_options)
    return kernels, skipped


def corpus_sha256(kernels: Iterable[Kernel]) -> str:
    """Return the identity of a set of kernels, whatever their order and their paths."""
    return sha256_hex("\n".join(sorted(kernel.kernel_id for kernel in kernels)).encode())


def _corpus(kernels: Sequence[Kernel], skipped: Sequence[tuple[str, str]]) -> Corpus:
    kept: dict[str, Kernel] = {}
    for kernel in sorted(kernels, key=lambda one: (one.kernel_id, one.suite, one.path)):
        known = kept.setdefault(kernel.kernel_id, kernel)
        if known.analysis is None and kernel.analysis is not None:
            kept[kernel.kernel_id] = replace(known, analysis=kernel.analysis)
    families = assign_families([(one.kernel_id, one.source, one.name) for one in kept.values()])
    _logger.debug("%d kernels, of which %d are different", len(kernels), len(kept))
    return Corpus(
        kernels=tuple(replace(one, family_id=families[one.kernel_id]) for one in kept.values()),
        sha256=corpus_sha256(kept.values()),
        skipped=tuple(sorted(set(skipped))),
    )


def kernels_of(file: SourceFile, parsed: Parsed, build_options: str) -> list[Kernel]:
    """Return the kernels of one file, in the order of ``parsed``; each is its own family."""
    if isinstance(parsed, Failure):
        whole = ReadKernel(
            name=Path(file.path).stem,
            source=file.text if file.text is not None else "",
            build_options=build_options,
            failure=parsed,
        )
        return [_kernel(file, whole, whole.source if file.text is not None else _identity(file))]
    return [_kernel(file, one, one.source) for one in parsed]


def _identity(file: SourceFile) -> str:
    """Return the identity of a file that is not text: its hash, or its path if it is unreadable."""
    if file.sha256 == sha256_hex(b""):
        return f"path:{file.suite}/{file.path}"
    return f"sha256:{file.sha256}"


def _kernel(file: SourceFile, one: ReadKernel, identity: str) -> Kernel:
    identifier = kernel_id(name=one.name, source=identity, build_options=one.build_options)
    return Kernel(
        kernel_id=identifier,
        name=one.name,
        source=one.source,
        source_sha256=sha256_hex(one.source.encode()) if file.text is not None else file.sha256,
        path=file.path,
        suite=file.suite,
        family_id=identifier,
        build_options=one.build_options,
        invented_macros=one.invented,
        signature=one.signature,
        failure=one.failure,
    )


def why_no_kernel(file: SourceFile) -> str:
    """Return why a readable file has no kernel."""
    return "no __kernel function" if file.text and file.text.strip() else "empty file"


def _unreadable(file: SourceFile) -> Failure:
    return Failure(code=FailureCode.BUILD_ERROR, stage=Stage.SIGNATURE, detail=file.problem)


def no_kernel(paths: Sequence[Path], skipped: Sequence[tuple[str, str]]) -> str:
    """Return the message that some sources have no kernel, with the reasons."""
    where = ", ".join(str(path) for path in paths)
    listed = "; ".join(f"{path}: {reason}" for path, reason in skipped[:5])
    return (
        f"{where or 'no source given'}: no kernel found ({listed or 'no file'}): "
        "name a file or folder with __kernel functions"
    )

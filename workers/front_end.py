"""From one text to its kernels, each with the source it needs and the macros it is built with.

Owns the order of the steps: macros that the host would define (``macro_inference.py``), signatures
(``signature.py``), pruning (``prune_source.py``), and the rule that a step which does not help is undone. Needs no
device; runs in the parse child.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from llmperf_common.failures import Failure
from llmperf_common.records import Signature
from workers.clang_nodes import ParsedSource
from workers.clang_parse import ParserCrashError, parse
from workers.macro_inference import infer_macros, open_kernels
from workers.prune_source import prune
from workers.signature import (
    NamedSignature,
    mentions_kernel,
    parser_failure,
    signature_of,
    signatures_of,
)
from workers.source_checks import refused

MAX_PRUNED_BYTES = 2**20
"""Text parsed again for one file; kernels beyond it keep the whole file (a megabyte with hundreds of kernels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKernel:
    """One kernel as read: ``source`` and ``build_options`` are what its device's compiler will get.

    ``signature`` and ``failure`` as in ``NamedSignature``.
    """

    name: str
    source: str
    build_options: str
    signature: Signature | None = None
    failure: Failure | None = None


def read_kernels(source: str, build_options: str = "") -> tuple[ReadKernel, ...] | Failure:
    """Read every kernel of one text, in the order they are defined.

    Args:
        source: OpenCL C text.
        build_options: as for the device's compiler; what is inferred is added to them.

    Returns:
        One entry a kernel; none if the text never says ``kernel``; a Failure if it does, but nothing could be
        made of it.

    >>> found = read_kernels("float g(float x) { return x; } kernel void f(global REAL *a) { a[0] = 1; }")
    >>> found[0].source, found[0].build_options
    (' kernel void f(global REAL *a) { a[0] = 1; }', '-DREAL=float')
    """
    if not mentions_kernel(source):
        return ()
    if (refusal := refused(source)) is not None:
        return refusal
    try:
        return _Reading(source, build_options).kernels()
    except (RecursionError, ParserCrashError) as error:
        return parser_failure(error)


class _Reading:
    """The reading of one text."""

    def __init__(self, source: str, build_options: str) -> None:
        self._source = source
        self._given = build_options
        self._inferred: tuple[str, ...] = ()
        self._pruned_bytes = 0

    def kernels(self) -> tuple[ReadKernel, ...] | Failure:
        parsed = self._parsed()
        found = signatures_of(parsed, self._source)
        if isinstance(found, Failure):
            return found
        return tuple(self._kernel(parsed, one) for one in found)

    def _parsed(self) -> ParsedSource:
        plain = parse(self._source, self._given)
        if plain.errors:
            self._inferred = infer_macros(self._source, self._given)
        elif not plain.kernels:
            self._inferred = open_kernels(self._source)
        if not self._inferred:
            return plain
        parsed = parse(self._source, self._options(self._inferred))
        if len(parsed.kernels) < len(plain.kernels) or (not plain.errors and not parsed.kernels):
            self._inferred = ()
            return plain
        return parsed

    def _options(self, inferred: tuple[str, ...]) -> str:
        return " ".join([self._given, *inferred] if self._given else inferred)

    def _kernel(self, parsed: ParsedSource, one: NamedSignature) -> ReadKernel:
        whole = ReadKernel(
            name=one.name,
            source=self._source,
            build_options=self._options(self._inferred),
            signature=one.signature,
            failure=one.failure,
        )
        text = self._source.encode("utf-8", "replace")
        function = next((k for k in parsed.kernels if k.name == one.name), None)
        shorter = prune(text, parsed, function) if function is not None else None
        if shorter is None or self._pruned_bytes + len(shorter) > MAX_PRUNED_BYTES:
            return whole
        self._pruned_bytes += len(shorter)
        pruned = shorter.decode("utf-8", "replace")
        options = self._options(tuple(word for word in self._inferred if _is_named(word, pruned)))
        if not _means_the_same(parsed, one, pruned, options):
            return whole
        return replace(whole, source=pruned, build_options=options)


def _is_named(definition: str, text: str) -> bool:
    name = definition.removeprefix("-D").partition("=")[0]
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _means_the_same(parsed: ParsedSource, one: NamedSignature, pruned: str, options: str) -> bool:
    """Whether the shorter text gives the same kernel and no error that the whole did not have."""
    again = parse(pruned, options)
    kernels = again.kernels
    if [kernel.name for kernel in kernels] != [one.name]:
        return False
    if _without_lines(again.errors) - _without_lines(parsed.errors):
        return False
    return signature_of(again, pruned, kernels[0]) == one


def _without_lines(errors: tuple[str, ...]) -> Counter[str]:
    return Counter(error.partition(": ")[2] for error in errors)

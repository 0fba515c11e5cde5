"""Read one text's kernels, each with the source that it needs and the macros that it is built with.

Owns the order of the steps: infer macros that the host would define (``macro_inference.py``),
define macros that select branches which ``#if`` excludes, extract signatures (``signature.py``),
prune (``prune_source.py``). A step that does not help is undone. No kernel of the text is lost: a
kernel that cannot be read gets a failure. Needs no device; runs in the parse child.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import pairwise

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.features.least_time import DenseAccess
from llmperf_common.records import Signature
from workers.device.opencl.build_options import option_words
from workers.source.clang.nodes import Function, ParsedSource
from workers.source.clang.parse import ParserCrashError, parse
from workers.source.dense_accesses import dense_accesses
from workers.source.kernel_headers import KernelHeader, kernel_headers, mentions_kernel
from workers.source.macro_inference import ParseBudget, infer_macros
from workers.source.preprocessor_guards import opening
from workers.source.prune_source import Pruner
from workers.source.read_kernel import ReadKernel
from workers.source.signature import NamedSignature, signature_of
from workers.source.source_checks import refused

MAX_PRUNED_BYTES = 2**20
"""Maximum bytes of pruned text that are parsed again for one file. In a file with hundreds of
kernels, the kernels beyond this limit keep the whole file."""


def read_kernels(source: str, build_options: str = "") -> tuple[ReadKernel, ...] | Failure:
    """Read every kernel of one text in order of definition; kernels that ``#if`` excludes are last.

    Args:
        source: OpenCL C text.
        build_options: options for the device's compiler; inferred definitions are added to them.

    Returns:
        One entry for each kernel; an empty tuple if the text has no word ``kernel``; a Failure if
        it has the word but no kernel can be read.

    >>> text = "float g(float x) { return x; } kernel void f(global REAL *a) { a[0] = 1; }"
    >>> found = read_kernels(text)
    >>> found[0].source, found[0].build_options
    (' kernel void f(global REAL *a) { a[0] = 1; }', '-DREAL=float')
    """
    if not mentions_kernel(source):
        return ()
    if (refusal := refused(source)) is not None:
        return refusal
    try:
        return _Reading(source, build_options).kernels()
    except RecursionError:
        what = "an expression is nested too deeply to be analysed"
        return _failure(FailureCode.UNSUPPORTED, what)
    except ParserCrashError as error:
        return _failure(FailureCode.COMPILER_CRASH, str(error))


class _View:
    """One parse of the text, and the inferred definitions with which it was parsed."""

    def __init__(self, parsed: ParsedSource, inferred: tuple[str, ...]) -> None:
        self.parsed = parsed
        self.inferred = inferred
        self._pruner: Pruner | None = None
        self._errors_of: dict[str, list[int]] = {}
        for number, error in enumerate(parsed.errors):
            self._errors_of.setdefault(_without_line(error), []).append(number)

    def prune(self, kernel: Function, source: str) -> bytes | None:
        """Return what is left of the text for one kernel, or None."""
        if self._pruner is None:
            self._pruner = Pruner(source.encode("utf-8", "replace"), self.parsed)
        return self._pruner.prune(kernel)

    def explains(self, errors: tuple[str, ...]) -> bool:
        """Whether the parse of the whole text has each of these errors at least as often."""
        return all(
            num <= len(self._errors_of.get(text, ()))
            for text, num in Counter(map(_without_line, errors)).items()
        )

    def errors_like(self, errors: tuple[str, ...]) -> tuple[str, ...]:
        """Return the errors of the whole text that differ from one of these at most in the line."""
        texts = set(map(_without_line, errors))
        numbers = sorted(number for text in texts for number in self._errors_of.get(text, ()))
        return tuple(self.parsed.errors[number] for number in numbers)


class _Reading:
    """The reading of one text."""

    def __init__(self, source: str, build_options: str) -> None:
        self._source = source
        self._given = build_options
        self._budget = ParseBudget()
        self._pruned_bytes = 0

    def kernels(self) -> tuple[ReadKernel, ...] | Failure:
        views = self._views(())
        found = self._read(views)
        left = [one for one in kernel_headers(self._source) if one.name not in found]
        for openers, names in _by_openers(left):
            found.update(self._opened([*views[0].inferred, *openers], openers, names))
        for header in left:
            failure = self._loss(views[0], header) if header.name not in found else None
            if failure is not None:
                found[header.name] = self._whole(views[0], header.name, failure=failure)
        return tuple(found.values()) or _nothing(views[0].parsed)

    def _views(self, inferred: tuple[str, ...]) -> tuple[_View, ...]:
        """Return the parse with ``inferred``.

        If this parse has errors, a parse with more inferred macros comes first.
        """
        view = _View(parse(self._source, self._options(inferred)), inferred)
        if not view.parsed.errors:
            return (view,)
        more = infer_macros(self._source, self._options(inferred), self._budget)
        if not more:
            return (view,)
        every = _merged(inferred, more)
        return (_View(parse(self._source, self._options(every)), every), view)

    def _read(self, views: Sequence[_View], names: Set[str] | None = None) -> dict[str, ReadKernel]:
        """Read the named kernels (None: all), each from the first parse that contains it."""
        found: dict[str, ReadKernel] = {}
        for view in views:  # a macro that one kernel needs can exclude another kernel's branch
            for one in view.parsed.kernels:
                if one.name not in found and (names is None or one.name in names):
                    found[one.name] = self._kernel(view, one)
        return found

    def _opened(
        self, definitions: Sequence[str], openers: Sequence[str], names: Set[str]
    ) -> dict[str, ReadKernel]:
        """Read the named kernels with the definitions that select their branch."""
        if {_name(one) for one in openers} & _defined(self._given):
            return {}  # the build options already decide about this branch
        if not self._budget.allows(self._source):
            return {}
        return self._read(self._views(_merged(definitions)), names)

    def _options(self, inferred: tuple[str, ...]) -> str:
        return " ".join([self._given, *inferred] if self._given else inferred)

    def _whole(
        self,
        view: _View,
        name: str,
        *,
        signature: Signature | None = None,
        failure: Failure | None = None,
        errors: tuple[str, ...] = (),
        dense: tuple[DenseAccess, ...] = (),
    ) -> ReadKernel:
        return ReadKernel(
            name=name,
            source=self._source,
            build_options=self._options(view.inferred),
            invented=view.inferred,
            signature=signature,
            failure=failure,
            errors=errors,
            dense=dense,
        )

    def _kernel(self, view: _View, function: Function) -> ReadKernel:
        parsed = view.parsed
        one = signature_of(parsed, self._source, function)
        missing = _missing(parsed)
        # The missing file may declare a parameter's type. The parser reads an unknown type as int.
        is_known = missing is None or not function.num_header_errors
        whole = self._whole(
            view,
            one.name,
            signature=one.signature if is_known else None,
            failure=missing or one.failure,
            errors=parsed.errors,
            dense=dense_accesses(parsed, function) if one.signature is not None else (),
        )
        shorter = view.prune(function, self._source)
        if shorter is None or self._pruned_bytes + len(shorter) > MAX_PRUNED_BYTES:
            return whole
        self._pruned_bytes += len(shorter)
        pruned = shorter.decode("utf-8", "replace")
        invented = tuple(word for word in view.inferred if _is_named(word, pruned))
        options = self._options(invented)
        again = parse(pruned, options)
        if not _means_the_same(view, one, pruned, again):
            return whole
        errors = view.errors_like(again.errors)
        return replace(
            whole, source=pruned, build_options=options, invented=invented, errors=errors
        )

    def _loss(self, view: _View, header: KernelHeader) -> Failure | None:
        """Return why a kernel of the text was not read; None if its name is that of a macro."""
        if view.parsed.errors:
            detail = "the parser could not make sense of this kernel\n" + "\n".join(
                view.parsed.errors
            )
        elif not header.branches or self._is_macro(view, header.name):
            return None
        else:
            detail = (
                "#if excludes this kernel, and no macro that LLMPerf tried selects its branch; "
                "pass the macros that it needs (-D...)"
            )
        return _failure(FailureCode.BUILD_ERROR, detail)

    def _is_macro(self, view: _View, name: str) -> bool:
        defined = re.search(rf"#[ \t]*define[ \t]+{name}\b", self._source) is not None
        return defined or name in _defined(self._options(view.inferred))


def _by_openers(headers: Iterable[KernelHeader]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield definitions that select a branch of ``#if``, and the names of its kernels.

    A kernel of several branches belongs to the first branch whose definitions are known.
    """
    groups: dict[tuple[str, ...], set[str]] = {}
    seen: set[str] = set()
    for header in headers:
        openers = tuple(f"-D{one}" for one in opening(header.branches))
        if openers and header.name not in seen:
            seen.add(header.name)
            groups.setdefault(openers, set()).add(header.name)
    yield from groups.items()


def _merged(*definitions: Sequence[str]) -> tuple[str, ...]:
    """Return definitions sorted by name; if a name occurs twice, the later definition counts."""
    by_name = {_name(word): word for part in definitions for word in part}
    return tuple(by_name[name] for name in sorted(by_name))


def _name(definition: str) -> str:
    return definition.removeprefix("-D").partition("=")[0]


def _defined(build_options: str) -> set[str]:
    words = option_words(build_options)
    apart = {_name(word) for before, word in pairwise(words) if before == "-D"}
    return apart | {_name(word) for word in words if word.startswith("-D")}


def _is_named(definition: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(_name(definition))}\b", text) is not None


def _means_the_same(view: _View, one: NamedSignature, pruned: str, again: ParsedSource) -> bool:
    """Whether the shorter text gives the same kernel, and only errors that the whole text gives."""
    kernels = again.kernels
    if [kernel.name for kernel in kernels] != [one.name]:
        return False
    if not view.explains(again.errors):
        return False
    return signature_of(again, pruned, kernels[0]) == one


def _without_line(error: str) -> str:
    return error.partition(": ")[2]


def _missing(parsed: ParsedSource) -> Failure | None:
    """Return the failure of a text with a missing include, which no compiler can build."""
    if not parsed.missing_files:
        return None
    names = ", ".join(parsed.missing_files)
    detail = f"it includes {names}: not found beside the file nor in a folder above it"
    return _failure(FailureCode.BUILD_ERROR, detail)


def _nothing(parsed: ParsedSource) -> Failure:
    reasons = parsed.errors or (
        "no __kernel function with a body is left after preprocessing; "
        "pass the macros it needs (-D...)",
    )
    return _failure(FailureCode.BUILD_ERROR, "no kernel found\n" + "\n".join(reasons))


def _failure(code: FailureCode, detail: str) -> Failure:
    return Failure(code=code, stage=Stage.SIGNATURE, detail=detail)

"""One kernel as the front end has read it: what a parse child returns.

Imports little: the collector imports this module, but only the parse children import libclang.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmperf_common.failures import Failure
from llmperf_common.features.least_time import DenseAccess
from llmperf_common.records import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKernel:
    """One kernel: ``source`` and ``build_options`` are what the device's compiler gets.

    ``signature`` and ``failure`` are as in ``NamedSignature``. ``errors``: the parser's errors
    in ``source``, each as ``line: text``, with line numbers of the original text. ``invented``: the
    inferred definitions. ``dense``: the accesses that every work-item surely makes.
    """

    name: str
    source: str
    build_options: str
    invented: tuple[str, ...] = ()
    signature: Signature | None = None
    failure: Failure | None = None
    errors: tuple[str, ...] = ()
    dense: tuple[DenseAccess, ...] = ()

"""What to say when an optional library is not installed.

Owns the one error for it and the import that raises it. Each heavy library still has one door a package.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from llmperf_common.errors import Exit, LlmperfError


class MissingExtra(LlmperfError, ImportError):  # noqa: N818  (it names a state, as the house's other errors do)
    """An optional library is needed and absent; the message names the ``pip install`` that brings it."""

    exit_code = Exit.USAGE

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f'{module} is not installed: pip install "llmperf[{extra}]"', name=module)
        self.extra = extra


def require(module: str, extra: str) -> Any:
    """Import ``module`` and return it.

    Args:
        module: dotted name of the library's module.
        extra: name of our extra that installs it.

    Raises:
        MissingExtra: The library is not installed. An import error inside an installed library is
            passed on as it is: reinstalling would not help.

    >>> require("json", "train").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".", maxsplit=1)[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(module, extra) from error


def require_installed(modules: Iterable[str], extra: str) -> None:
    """Ask that libraries are there, without importing them: before work that needs them later.

    Args:
        modules: names of the libraries' top modules.
        extra: name of our extra that installs all of them.

    Raises:
        MissingExtra: One is not installed; names the first.

    >>> require_installed(["json"], "train")
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, extra)

"""The error for an optional library that is not installed, and the import that raises it.

In each package only one module may import a given heavy library. (Ruff enforces this rule.)
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from llmperf_common.errors import Exit, LlmperfError


class MissingExtra(LlmperfError, ImportError):  # noqa: N818  (named for a state)
    """A required optional library is not installed; the message names its ``pip install``."""

    exit_code = Exit.USAGE

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f'{module} is not installed: pip install "llmperf[{extra}]"', name=module)
        self.extra = extra


def require(module: str, extra: str) -> Any:
    """Import ``module`` and return it.

    Args:
        module: dotted name of the library's module.
        extra: name of the extra of llmperf that installs the library.

    Raises:
        MissingExtra: The library is not installed. An import error inside an installed library is
            passed on unchanged: reinstalling would not help.

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
    """Check, before work that needs libraries, that they are installed; import none of them.

    Args:
        modules: names of the libraries' top modules.
        extra: name of the extra of llmperf that installs all of them.

    Raises:
        MissingExtra: A library is not installed; the message names the first missing library.

    >>> require_installed(["json"], "train")
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, extra)

"""The page ``docs/reference/api.md``: the Python API, from its signatures and docstrings.

Owns the lists of results and errors, and the conversion of Google docstrings to Markdown.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import llmperf
from llmperf import collecting, progress
from llmperf.prediction import model
from llmperf.prediction.model import Launch, Model
from llmperf.prediction.record import Prediction
from llmperf_common.errors import LlmperfError
from llmperf_common.store.tables.reader import Dataset
from llmperf_common.store.tables.stats import DatasetStats
from llmperf_common.store.upkeep.problems import Problem
from llmperf_common.store.upkeep.verify import VerifyCounts, VerifyReport
from trainer.evaluation.evaluate import EvaluationSummary
from trainer.life.summary import RunSummary
from workers.collect.summary import CollectSummary

RESULTS: tuple[type, ...] = (
    CollectSummary,
    progress.CollectProgress,
    Dataset,
    DatasetStats,
    VerifyReport,
    VerifyCounts,
    Problem,
    RunSummary,
    EvaluationSummary,
    Model,
    Launch,
    Prediction,
)
"""Types that the functions return, take, or pass to a callback."""
ERRORS = (
    "llmperf.exits.CommandError",
    "llmperf_common.config.ConfigError",
    "llmperf_common.extras.MissingExtra",
    "llmperf_common.store.files.filesystem.StoreError",
    "llmperf_common.store.manifests.run.ForeignRunError",
    "llmperf_common.ledger.protocol.LedgerAwayError",
    "llmperf_common.statistics.splits.SplitError",
    "workers.corpus.files.CorpusError",
    "workers.source.parse_pool.ParserError",
    "workers.sandbox.run_children.DeviceLostError",
    "workers.device.nvidia.gpu_lock.GpuTakenError",
    "llmperf_common.files.plain_files.UnfitFileError",
    "llmperf_common.installation.InstallationChanged",
    "llmperf_common.features.features.UnknownFeatureError",
    "workers.execution.doubtful_builds.NothingCompilesError",
    "cluster.collect.ManyHostsError",
    "cluster.pool.runtime.ClusterAddressError",
    "cluster.ledger.redis_connection.LedgerUrlError",
    "llmperf_common.files.outputs.OutputTaken",
    "trainer.errors.RunExists",
    "trainer.errors.BadInput",
    "trainer.errors.SeenRows",
    "trainer.errors.FitFailed",
    "trainer.errors.Interrupted",
    "trainer.launch.ray.RayUnreachable",
    "trainer.launch.ray.ClusterTooSmall",
    "trainer.life.conductor.FirstProcessFailedError",
)
_OWN_CODE = ("CommandError", "FirstProcessFailedError")
"""Errors whose exit code is an argument."""
_ALIASES = {
    "SourcePath": collecting.SourcePath,
    "Size": model.Size,
    "Overrides": collecting.Overrides,
    "ProgressOption": progress.ProgressOption,
}
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$")
_ENTRY = re.compile(r"^    (\w+): (.*)$")
_LINE_WIDTH = 100


def api_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "`import llmperf` is fast: each function loads the libraries that it needs. Notebooks"
    yield "show results as tables."
    yield "[A notebook](../tutorial/llmperf-in-a-notebook.ipynb) shows all functions in use."
    yield ""
    yield "In signatures:"
    yield ""
    for name, alias in _ALIASES.items():
        yield f"- `{name}` is `{_plain(str(alias))}`"
    yield "- `Table` is a `pyarrow.Table`"
    functions = {name: getattr(llmperf, name) for name in llmperf.__all__ if name[0].islower()}
    for name, function in functions.items():
        yield ""
        yield f"## `llmperf.{name}`"
        yield ""
        yield from _callable(f"llmperf.{name}", function)
    yield ""
    yield "## Results"
    for kind in RESULTS:
        yield ""
        yield from _result(kind)
    yield ""
    yield "## Errors"
    yield ""
    yield from _markdown(inspect.getdoc(LlmperfError) or "")
    yield ""
    yield "To catch all of them, catch `llmperf.LlmperfError`. Errors of the operating system, such"
    yield "as a full disk, are `OSError`s."
    yield ""
    yield "| class | exit code | meaning |"
    yield "|---|---|---|"
    yield from map(_error_row, ERRORS)


def _result(kind: type) -> Iterator[str]:
    yield f"### `{kind.__name__}`"
    yield ""
    yield from _markdown(inspect.getdoc(kind) or "")
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield ""
            yield f"#### `{name}`"
            yield ""
            yield from _markdown(inspect.getdoc(member) or "")
        elif inspect.isfunction(member):
            yield ""
            yield f"#### `{name}()`"
            yield ""
            yield from _callable(name, member)


def _callable(name: str, function: Any) -> Iterator[str]:
    yield "```python"
    yield _signature(name, function)
    yield "```"
    yield ""
    yield from _markdown(inspect.getdoc(function) or "")


def _signature(name: str, function: Any) -> str:
    """Return a call with annotations and defaults, on one line or with one line per parameter."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.name != "self"]
    returns = _plain(str(signature.return_annotation))
    texts: list[str] = []
    for one in own:
        if one.kind is one.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        default = "" if one.default is one.empty else f" = {one.default!r}".replace("'", '"')
        texts.append(f"{one.name}: {_plain(str(one.annotation))}{default}")
    line = f"{name}({', '.join(texts)}) -> {returns}"
    if len(line) <= _LINE_WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in texts), f") -> {returns}"])


def _plain(annotation: str) -> str:
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", annotation)


def _markdown(docstring: str) -> Iterator[str]:
    """Yield a Google docstring as paragraphs and lists in Markdown, without its examples."""
    text = docstring.partition("\n>>>")[0].rstrip().replace("``", "`")
    is_list = False
    for line in text.splitlines():
        section, entry = _SECTION.match(line), _ENTRY.match(line)
        if section:
            is_list = section[1] != "Returns"
            yield f"**{section[1]}**"
            yield ""
        elif is_list and entry:
            yield f"- `{entry[1]}`: {entry[2]}"
        else:
            yield f"  {line.strip()}" if is_list and line else line.strip()


def _error_row(name: str) -> str:
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    code = "its own" if kind in _OWN_CODE else found.exit_code.value
    meaning = " ".join(_paragraph(inspect.getdoc(found) or "")).replace("``", "`")
    return f"| `{name}` | {code} | {meaning} |"


def _paragraph(text: str) -> Iterable[str]:
    return (line.strip() for line in text.partition("\n\n")[0].splitlines())

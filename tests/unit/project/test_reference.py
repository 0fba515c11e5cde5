"""The reference pages are what the code says, and the commands behave as the pages say."""

from __future__ import annotations

import functools
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmperf
from cluster.config import ClusterCollectConfig, ClusterConfig
from cluster.telemetry.metrics import METRICS
from llmperf.exits import CommandError, Exit
from llmperf.reference.commands import EXIT_MEANINGS, commands, option_names
from llmperf.reference.pages import RETRY_MEANINGS, main, render
from llmperf_common.config import Node, key_names, load_config
from llmperf_common.failures import FailureCode, Retry
from llmperf_common.schemas import TABLES
from trainer.config import TrainConfig
from workers.collect.events import EVENT_KINDS
from workers.config import CollectConfig

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(render()))
def test_the_page_is_not_stale(name: str) -> None:
    stored = (FOLDER / name).read_text(encoding="utf-8")
    assert stored == render()[name], "stale: run `make docs`"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(render())


def test_every_page_is_written(tmp_path: Path) -> None:
    main([str(tmp_path / "new")])
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()}
    assert written == render()


def test_a_missing_folder_is_a_usage_error() -> None:
    with pytest.raises(CommandError, match="FOLDER") as caught:
        main([])
    assert caught.value.exit_code is Exit.USAGE


def test_every_exit_code_and_retry_rule_has_a_meaning() -> None:
    assert set(EXIT_MEANINGS) == set(Exit)
    assert set(RETRY_MEANINGS) == set(Retry)


def first_cells(page: str) -> list[str]:
    """The text of the first column of every table of a page."""
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]


def test_the_api_page_has_every_name_and_says_what_it_is() -> None:
    page = render()["api.md"]
    functions = [name for name in llmperf.__all__ if name[0].islower()]
    assert re.findall(r"^## `llmperf\.(\w+)`$", page, re.MULTILINE) == functions
    for section in re.split(r"^#+ `.*$", page, flags=re.MULTILINE)[1:]:
        words = re.sub(r"```python.*?```", "", section, flags=re.DOTALL)
        assert re.match(r"\s*[A-Z][\w ]", words), f"no docstring: {section}"


@pytest.mark.parametrize("name", [name for name in llmperf.__all__ if name[0].islower()])
def test_every_argument_of_the_api_has_a_meaning(name: str) -> None:
    page = render()["api.md"]
    section = page.split(f"\n## `llmperf.{name}`\n")[1].split("\n## ")[0]
    told = re.findall(r"^- `(\w+)`: \S", section.partition("**Args**")[2], re.MULTILINE)
    wanted = list(inspect.signature(getattr(llmperf, name)).parameters)
    assert told[: len(wanted)] == wanted


def test_config_lists_every_key_once() -> None:
    of_cluster = [f"cluster.{key}" for key in key_names(ClusterConfig)]
    keys = [*key_names(CollectConfig), *of_cluster, *key_names(TrainConfig)]
    wanted = [f"`{key}`" for key in keys]
    assert first_cells(render()["config.md"]) == wanted


def test_config_says_a_default_a_range_and_a_meaning_of_each_key() -> None:
    for line in render()["config.md"].splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split("|")), line


@pytest.mark.parametrize(
    ("name", "root", "whole"),
    [("collect", CollectConfig, ClusterCollectConfig), ("train", TrainConfig, TrainConfig)],
    ids=str,
)
def test_an_example_file_is_the_defaults_also_when_all_of_it_is_uncommented(
    name: str, root: type[Node], whole: type[Node], tmp_path: Path
) -> None:
    text = (FOLDER / f"{name}-example.toml").read_text("utf-8")
    assert re.findall(r"^(?:#(\w+) =|# (\w+): unset by default$)", text, re.MULTILINE) == [
        ("", key) if value is None else (key, "") for key, value in leaves(whole())
    ]
    file = tmp_path / "mine.toml"
    file.write_text(text, "utf-8")
    assert load_config(root, file=file) == root(), "no key of [cluster] without --cluster"
    assert load_config(whole, file=file) == whole()
    file.write_text(re.sub(r"^#(?! )", "", text, flags=re.MULTILINE), "utf-8")
    assert load_config(whole, file=file) == whole()
    assert tomllib.loads(file.read_text("utf-8")).keys() == whole.model_fields.keys()


def leaves(node: Node) -> Iterator[tuple[str, object]]:
    """The last part of each key of a tree, with its value."""
    for key in key_names(type(node)):
        *parents, name = key.split(".")
        yield name, getattr(functools.reduce(getattr, parents, node), name)


def test_failures_lists_every_code_once() -> None:
    found = first_cells(render()["failure-codes.md"])
    assert found == [f"`{code}`" for code in FailureCode]


def test_metrics_and_events_are_listed_with_a_meaning() -> None:
    pages = render()
    assert first_cells(pages["metrics.md"]) == [f"`{one.name}`" for one in METRICS]
    assert all(f"`{kind}`" in first_cells(pages["events.md"]) for kind in EVENT_KINDS)


def test_schema_lists_every_column_with_a_meaning() -> None:
    page = render()["schema.md"]
    for table, schema in TABLES.items():
        section = page.split(f"\n## `{table}`\n")[1].split("\n## ")[0]
        assert first_cells(section) == [f"`{name}`" for name in schema.names]
        assert all(line.rstrip("| ").split("|")[-1].strip() for line in section.splitlines()[5:])


def test_cli_lists_every_option_with_a_meaning() -> None:
    page = render()["cli.md"]
    for name, command in commands():
        section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
        for option in option_names(command):
            assert f"`{option.strip('[]')}`" in section
        for line in section.splitlines():
            if line.startswith("| `"):
                assert line.split("|")[-2].strip(), line


def test_the_text_is_json_free_of_machine_paths() -> None:
    text = json.dumps(render())
    assert str(Path.home()) not in text
    assert str(FOLDER.parents[1]) not in text

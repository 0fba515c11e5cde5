"""The card: what it says can be typed, and others' tools read what it declares."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
import yaml

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ids import sha256_hex
from llmperf_common.schemas import TABLES
from llmperf_common.store.tables.card import update_card, write_card
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.compact import CompactionTarget, compact
from llmperf_common.store.upkeep.sweep import sweep
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import make_dataset, make_kernel, mixed_outcome


def carded(path: Path, **options: str) -> Path:
    dataset = open_dataset(path)
    write_card(dataset.fs, dataset, **options)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    unreadable = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail="an image")
    kernels = [*(make_kernel(i) for i in range(3)), make_kernel(3, failure=unreadable)]
    folder = tmp_path_factory.mktemp("card") / "data"
    return carded(make_dataset(folder, kernels=kernels, outcome_of=mixed_outcome))


def front_matter(path: Path) -> dict:
    _, head, _ = (path / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head)


def code_blocks(path: Path, language: str) -> list[str]:
    text = (path / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    return [block.replace("DIR", str(path)) for block in blocks]


def test_the_front_matter_lists_the_manifests_files(path):
    head = front_matter(path)
    dataset = open_dataset(path)
    assert "license" not in head
    assert head["size_categories"] == ["n<1K"]
    configs = {config["config_name"]: config for config in head["configs"]}
    assert [config.get("default", False) for config in head["configs"]] == [True, False, False]
    for table in TABLES:
        (split,) = configs[table]["data_files"]
        assert split["path"] == [entry.name for entry in dataset.shards(table)]


def test_the_text_says_what_is_in_it(path):
    text = (path / "README.md").read_text()
    assert "13 launch configs of 4 kernels" in text
    assert "| `over_time_budget` | 3 |" in text
    assert "27.27%" in text, "the censored share"
    assert (
        "| `median_ns` | double | ns | Median of time_ns: the value that models predict. |" in text
    )
    for schema in TABLES.values():
        for field in schema:
            assert f"| `{field.name}` |" in text


_LOAD = """
import warnings
import datasets
from datasets.utils.logging import disable_progress_bar

disable_progress_bar()
warnings.simplefilter("error")
{code}
assert samples.num_rows == 13 and samples[0]["status"] == "ok", samples
assert samples.features["time_ns"] is not None
assert kernels.num_rows == 4 and kernels[0]["build"]["options"] == "-cl-std=CL2.0", kernels
devices = datasets.load_dataset("{path}", "devices", split="train")
assert devices[0]["max_work_item_sizes"] == [1024, 1024, 64]
assert datasets.load_dataset("{path}", split="train").num_rows == 13
"""


def run_python(code: str, home: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_python_blocks_run_as_written(path, tmp_path):
    load, pandas, reader = code_blocks(path, "python")
    run_python(
        f"{_LOAD.format(code=load, path=path)}\n"
        f"{pandas}\nassert (len(samples), len(ok)) == (13, 8)\n"
        f"{reader}\nassert table.num_rows == 13",
        tmp_path,
    )


def test_the_sql_block_runs_as_written(path):
    (query,) = code_blocks(path, "sql")
    rows = duckdb.sql(query).fetchall()
    assert len(rows) == 8
    assert rows[0] == ("scale_2", [256], [64], 4200.0)


def test_croissant_names_every_shard_and_column(path):
    document = json.loads((path / "croissant.json").read_text())
    assert document["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    files = {d["@id"]: d for d in document["distribution"] if d["@type"] == "cr:FileObject"}
    assert set(files) == open_dataset(path).manifest.shard_names
    for name, file in files.items():
        assert file["sha256"] == sha256_hex((path / name).read_bytes())
    record_sets = {r["@id"]: [f["name"] for f in r["field"]] for r in document["recordSet"]}
    assert record_sets["samples"] == TABLES["samples"].names
    assert record_sets["devices"] == TABLES["devices"].names
    beyond_croissant = {"overflowing_local_sizes"}  # lists of lists
    assert {f.name for f in TABLES["kernels"]} - beyond_croissant == set(record_sets["kernels"])


def test_a_licence_and_a_name_are_kept_whatever_they_hold(tmp_path):
    path = make_dataset(tmp_path, kernels=1)
    carded(path, license_name="apache-2.0", pretty_name='Ours: "the best" # ünïcode')
    head = front_matter(path)
    assert head["license"] == "apache-2.0"
    assert head["pretty_name"] == 'Ours: "the best" # ünïcode'
    assert json.loads((path / "croissant.json").read_text())["license"] == "apache-2.0"


def test_a_dataset_without_results_has_a_card(tmp_path):
    path = carded(make_dataset(tmp_path, kernels=0, num_planned_tasks=5))
    text = (path / "README.md").read_text()
    assert "0 of 5 planned tasks" in text
    assert "There are no results yet" in text
    assert "configs" not in front_matter(path)
    assert json.loads((path / "croissant.json").read_text())["recordSet"] == []


def card_without_a_marker(path: Path) -> str:
    """Return the card of ``path`` as it was before there was a marker."""
    lines = (carded(path) / "README.md").read_text().split("\n")
    mark = next(i for i, line in enumerate(lines) if line.startswith("<!-- Written by llmperf"))
    del lines[mark : mark + 2]
    lines.remove("- LLMPerf")
    return "\n".join(lines)


def test_a_card_of_an_earlier_release_is_brought_up_to_date(tmp_path, caplog):
    path = make_dataset(tmp_path, kernels=2)
    old = card_without_a_marker(path)
    assert "---\n\n# LLMPerf kernel timings\n" in old, "as earlier releases wrote it"
    card = path / "README.md"
    card.write_text(old)
    compact(path, target=CompactionTarget(rows=1000, size_mib=64))
    assert not caplog.records
    assert card.read_text() != old
    listed = [config["data_files"][0]["path"] for config in front_matter(path)["configs"]]
    dataset = open_dataset(path)
    assert listed == [[entry.name for entry in dataset.shards(table)] for table in TABLES]


@pytest.mark.parametrize("ours", ["marker removed", "other front matter", "no front matter"])
def test_a_text_of_ones_own_is_kept(tmp_path, caplog, ours):
    path = carded(make_dataset(tmp_path, kernels=1))
    card = path / "README.md"
    text = card.read_text()
    mine = {
        "marker removed": re.sub(r"<!-- Written by llmperf.*-->\n+", "", text),
        "other front matter": "---\ntitle: mine\n---\n\nTimed launches of OpenCL kernels\n",
        "no front matter": "# mine\n",
    }[ours]
    card.write_text(mine)
    update_card(open_dataset(path).fs)
    assert card.read_text() == mine
    (record,) = caplog.records
    assert "README.md was not written by llmperf: left as it is" in record.getMessage()


def test_the_card_disturbs_neither_sweep_nor_verification(path):
    assert sweep(open_dataset(path).fs).removed == ()
    assert verify(path).clean

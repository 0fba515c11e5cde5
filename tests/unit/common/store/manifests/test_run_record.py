"""``run.json``: the same plan joins, another is refused."""

import json
from dataclasses import replace

import pytest

from llmperf_common.schemas import SCHEMA_VERSION
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.run import (
    RUN_FILE,
    ForeignRunError,
    create_or_join_run,
    read_run,
)
from tests.support.factories.dataset_factory import make_device_class, make_run


@pytest.fixture
def fs(tmp_path):
    return PosixFilesystem(tmp_path / "data")


def test_create_then_join_returns_what_was_created(fs):
    run = make_run()
    assert create_or_join_run(fs, run) == run
    later = replace(run, created_at="2027-01-01T00:00:00+00:00")
    assert create_or_join_run(fs, later) == run
    assert read_run(fs) == run


def test_merged_from_reads_back_and_may_be_absent(fs):
    run = replace(make_run(), merged_from=("a", "b"))
    fs.put_if_absent(RUN_FILE, run.to_json())
    found = read_run(fs)
    assert found == run
    assert found.plan_hashes == ("a", "b")
    document = json.loads(make_run().to_json())
    del document["merged_from"]
    fs.replace(RUN_FILE, json.dumps(document).encode())
    assert read_run(fs) == make_run()
    assert make_run().plan_hashes == (make_run().plan_hash,)


def test_device_classes_of_earlier_versions_read_back(fs):
    limited = replace(make_device_class(), max_constant_buffer_bytes=65_536)
    run = replace(make_run(), device_classes=(limited,))
    fs.put_if_absent(RUN_FILE, run.to_json())
    assert read_run(fs) == run
    document = json.loads(run.to_json())
    del document["device_classes"][0]["max_constant_buffer_bytes"]
    fs.replace(RUN_FILE, json.dumps(document).encode())
    assert read_run(fs) == make_run()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"corpus_sha256": "0"}, "its corpus differs"),
        ({"device_classes": ()}, "device class replay"),
        ({"harness_version": 1}, r"version 2 of the measuring code .* this LLMPerf has version 1"),
        ({"config": {"plan": {"seed": 1}}}, r"plan\.seed: 0 there, 1 here"),
        ({}, "its plan differs"),
    ],
)
def test_another_plan_is_refused_with_the_difference(fs, change, words):
    create_or_join_run(fs, make_run())
    with pytest.raises(ForeignRunError, match=f"{words}.*choose another --out"):
        create_or_join_run(fs, replace(make_run(), plan_hash="other", **change))


def test_a_folder_with_other_files_is_refused(fs):
    fs.put_if_absent("thesis.tex", b"")
    with pytest.raises(ForeignRunError, match=r"thesis\.tex.*empty or new folder"):
        create_or_join_run(fs, make_run())
    assert read_run(fs) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema_version": 1, "device_classes": 3}'])
def test_damage_is_a_message(fs, data):
    fs.put_if_absent(RUN_FILE, data)
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        read_run(fs)


def test_a_newer_schema_asks_for_an_upgrade(fs):
    document = json.loads(make_run().to_json()) | {"schema_version": SCHEMA_VERSION + 1, "new": 1}
    fs.put_if_absent(RUN_FILE, json.dumps(document).encode())
    with pytest.raises(StoreError, match="upgrade LLMPerf"):
        read_run(fs)

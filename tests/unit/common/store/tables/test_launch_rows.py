"""Launch configs written to ``samples`` come back from its rows, except for how they were chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import ArgumentKind, LaunchArgument, LaunchConfig, Strategy
from llmperf_common.store.tables.launch_rows import LAUNCH_COLUMNS, launch_from_row
from llmperf_common.store.tables.rows import samples_table
from tests.support.factories.dataset_factory import make_kernel, make_result, make_timing

ARGUMENTS = (
    LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=4096, contents=Contents(rule=ContentsRule.BOUNDED, limit=17)),
    LaunchArgument(position=1, kind=ArgumentKind.GLOBAL_BUFFER, elements=64),
    LaunchArgument(position=2, kind=ArgumentKind.SCALAR, value=1 << 40),
    LaunchArgument(position=3, kind=ArgumentKind.SCALAR, value=0.5),
    LaunchArgument(position=4, kind=ArgumentKind.LOCAL_BUFFER, elements=128),
)  # fmt: skip


def written() -> LaunchConfig:
    (sample,) = make_result(make_kernel(), [make_timing()]).samples
    return replace(sample.config, args=ARGUMENTS, global_size=(256, 4), local_size=(32, 2), seed=9)


def row_of(config: LaunchConfig) -> dict[str, Any]:
    result = make_result(make_kernel(), [make_timing()])
    sample = replace(result.samples[0], config=config)
    (row,) = samples_table([replace(result, samples=(sample,))]).to_pylist()
    return dict(row)


def test_a_config_comes_back() -> None:
    config = written()
    found = launch_from_row(row_of(config))
    assert found == replace(config, regime=None, strategies=(Strategy.SIMPLE,))
    whole, fraction = (found.args[number].value for number in (2, 3))
    assert (type(whole), type(fraction)) == (int, float)


def test_the_launch_columns_suffice() -> None:
    row = row_of(written())
    found = launch_from_row({name: row[name] for name in LAUNCH_COLUMNS})
    assert found == replace(launch_from_row(row), sample_id="")


@pytest.mark.parametrize(("column", "value"), [("kind", "carpet"), ("contents", "prime numbers")])
def test_an_unknown_word_is_refused(column: str, value: str) -> None:
    row = row_of(written())
    row["args"] = [one | {column: value} for one in row["args"]]
    with pytest.raises(ValueError, match=value):
        launch_from_row(row)


def test_a_row_without_sizes_is_refused() -> None:
    with pytest.raises(TypeError):
        launch_from_row(row_of(written()) | {"global_size": None})

"""Values of a configuration that are taken for another type, and files with a byte order mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from cluster.config import ClusterConfig
from llmperf_common.config import ConfigError, Node, load_config
from trainer.config import TrainConfig
from workers.config import CollectConfig


class Typed(Node):
    switch: bool = False
    maybe: bool | int | None = None
    anything: Any = None
    number: int | None = None
    numbers: tuple[float, ...] = ()
    by_name: dict[str, int] | None = None
    pairs: tuple[tuple[int, ...], ...] = ()
    lists: dict[str, list[dict[str, int]]] | None = None
    switches: dict[str, list[bool]] | None = None
    choice: Literal[1, 2] = 2


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    "key", ["plan.samples_per_kernel", "plan.plain_share", "timing.sample_budget_ms"]
)
def test_true_is_no_number(key: str, value: bool, tmp_path: Path) -> None:
    section, name = key.split(".")
    file = tmp_path / "c.toml"
    file.write_text(f"[{section}]\n{name} = {str(value).lower()}\n")
    with pytest.raises(ConfigError, match=f"'{key}' = {value}: must be another type"):
        load_config(CollectConfig, file=file)
    with pytest.raises(ConfigError, match=key):
        load_config(CollectConfig, overrides={key: value})


@pytest.mark.parametrize(
    "values",
    [
        {"number": True},
        {"numbers": [1, True]},
        {"by_name": {"a": True}},
        {"choice": True},
        {"pairs": [[1], [2, True]]},
        {"lists": {"a": [{"b": 1}, {"b": False}]}},
    ],
)
def test_true_is_no_number_in_any_field(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be another type than true or false"):
        Typed.from_mapping(values)


def test_true_is_a_switch() -> None:
    values = {"switch": True, "maybe": False, "anything": True, "number": 1, "numbers": [1, 2.5]}
    assert Typed.from_mapping(values).model_dump() == Typed().model_dump() | values | {
        "numbers": (1, 2.5)
    }
    for root in (CollectConfig, TrainConfig, ClusterConfig):
        assert root.from_mapping(root().model_dump()) == root()


def test_switches_deep_in_a_value_and_values_without_an_end() -> None:
    assert Typed.from_mapping({"switches": {"a": [True]}}).switches == {"a": [True]}
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="pairs"):
        Typed.from_mapping({"pairs": endless})
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ConfigError, match="pairs"):
        Typed.from_mapping({"pairs": deep})


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbf[plan]\nseed = 7\n")
    assert load_config(CollectConfig, file=file).plan.seed == 7

"""The JSON of messages: it says what pydantic's says, and refuses what a damaged child may send."""

from __future__ import annotations

import json
import math
import random
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import pydantic
import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from tests.support.processes.stub_device import DEVICE
from workers.sandbox.message_json import UnfitJsonError, from_json, to_json
from workers.sandbox.messages import (
    MESSAGES,
    ChildCrashed,
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    HoldBegan,
    RunJob,
)


def drawn(kind: Any, rng: random.Random) -> Any:
    """A random value of a type of the messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return drawn(rng.choice(arguments), rng)
    if origin is tuple:
        kinds = arguments[:1] * rng.randrange(3) if arguments[-1] is Ellipsis else arguments
        return tuple(drawn(one, rng) for one in kinds)
    if origin is Mapping:
        return {f"key {n}": drawn(arguments[1], rng) for n in range(rng.randrange(3))}
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: drawn(one, rng) for name, one in hints.items()})
    if issubclass(kind, Enum):
        return rng.choice(list(kind))
    values: dict[type, Sequence[object]] = {
        types.NoneType: [None],
        bool: [False, True],
        int: [0, -1, 2**31, 2**80],
        float: [0.0, -0.0, 1.5, 1e18, 5e-324, 3, math.inf] if rng.random() < 0.1 else [0.1, 2.0],
        str: ["", 'a\n"b\\', "\0 é \u2028 \U0001f600"],
    }
    return rng.choice(values[kind])


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
def test_a_message_arrives_as_pydantic_would_bring_it(kind: type) -> None:
    rng = random.Random(kind.__name__)
    adapter = pydantic.TypeAdapter(kind)
    num_arrived = 0
    for _ in range(30):
        sent = drawn(kind, rng)
        text = to_json(sent)
        assert json.loads(text) == json.loads(adapter.dump_json(sent))
        try:
            expected = adapter.validate_json(text)
        except pydantic.ValidationError:  # a number that is not finite, where one is needed
            with pytest.raises(UnfitJsonError):
                from_json(text, kind)
            continue
        arrived = from_json(text, kind)
        assert arrived == expected
        assert repr(arrived) == repr(expected), "an int stays an int, and a float a float"
        num_arrived += 1
    assert num_arrived


def changed(name: str, value: str) -> bytes:
    """The JSON of a config's report with another value of one field."""
    failure = Failure(code=FailureCode.HANG, stage=Stage.LAUNCH, detail="x")
    report = ConfigFinished(finished_index=1, outcome=failure, sticky=False, launch_ns=2.0)
    fields = {key: json.dumps(one) for key, one in json.loads(to_json(report)).items()}
    return (
        "{" + ",".join(f'"{key}":{one}' for key, one in {**fields, name: value}.items()) + "}"
    ).encode()


def test_the_unchanged_report_is_accepted() -> None:
    assert from_json(changed("sticky", "true"), ConfigFinished).sticky


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("finished_index", "1.0"),
        ("finished_index", "true"),
        ("finished_index", '"1"'),
        ("finished_index", "null"),
        ("finished_index", "9" * 5000),
        ("sticky", "1"),
        ("launch_ns", "NaN"),
        ("launch_ns", "-Infinity"),
        ("launch_ns", "true"),
        ("launch_ns", "1" + "0" * 400),
        ("outcome", "null"),
        ("outcome", "[]"),
        ("outcome", "{}"),
        ("outcome", '{"code":"hang","stage":"launch","detail":"x"}'),
        ("outcome", '{"code":"nonsense","stage":"launch","detail":"x","censored":null}'),
        ("outcome", '{"code":"hang","stage":"launch","detail":"\\ud800","censored":null}'),
        ("outcome", "[" * 100_000),
        ("more", "1"),
    ],
)
def test_a_damaged_report_is_refused(name: str, value: str) -> None:
    with pytest.raises(UnfitJsonError):
        from_json(changed(name, value), ConfigFinished)


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b"\xff", b'{"started_index":1}x'])
def test_damaged_text_is_refused(text: bytes) -> None:
    with pytest.raises(UnfitJsonError):
        from_json(text, ConfigStarted)


def test_a_list_of_the_wrong_form_is_refused() -> None:
    text = to_json(ChildReady(device=DEVICE))
    assert from_json(text, ChildReady).device == DEVICE
    sizes = f'"max_work_item_sizes":{json.dumps(list(DEVICE.max_work_item_sizes), separators=(",", ":"))}'
    assert sizes.encode() in text
    for wrong in ("3", '"ab"', "{}", '["1"]', "[null]"):
        damaged = text.replace(sizes.encode(), f'"max_work_item_sizes":{wrong}'.encode())
        with pytest.raises(UnfitJsonError):
            from_json(damaged, ChildReady)


def test_a_number_that_is_not_finite_becomes_null() -> None:
    assert from_json(to_json(HoldBegan(sentinel_ns=float("inf"))), HoldBegan).sentinel_ns is None


def test_half_a_character_is_not_sent() -> None:
    with pytest.raises(UnicodeEncodeError):
        to_json(ChildCrashed(traceback="\ud800", summary=""))


def test_what_has_no_form_is_not_sent() -> None:
    with pytest.raises(TypeError):
        to_json(ConfigStarted(started_index={1}))  # type: ignore[arg-type]


def test_the_reader_knows_every_message() -> None:
    for kind in MESSAGES.values():
        with pytest.raises(UnfitJsonError):
            from_json(b"[]", kind)
    assert MESSAGES["RunJob"] is RunJob

"""Sizes, arguments and names that Python would read as something that a user did not mean."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import llmperf as api
from llmperf.exits import Exit
from llmperf.prediction.model import Model
from llmperf_common.store.files.filesystem import StoreError
from tests.fuzz.folder_mutate import mend_manifest
from tests.support.factories.dataset_factory import make_dataset
from tests.support.factories.synthetic_dataset import trained
from tests.support.in_process import Done, assert_refused, llmperf
from trainer.errors import BadInput

SCALE = """__kernel void scale(__global float *a, int n, float f)
{
    int i = get_global_id(0);
    if (i < n) a[i] = a[i] * f;
}
"""
ODD_DIGITS = ("1_000", "\u0663\u0664", "\uff16\uff14", "\u00b2", "0x40", "6 4", "6e1")


@pytest.fixture(scope="module")
def model() -> Model:
    return api.load_model(trained()[2].folder, analyse=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cl"
    path.write_text(SCALE)
    return path


def predicted(source: Path, *more: object) -> Done:
    return llmperf("predict", source, "--model", trained()[2].folder, "--work", "off", *more)


@pytest.mark.parametrize("digits", ODD_DIGITS)
@pytest.mark.parametrize("option", ["--global-size", "--local-size"])
def test_sizes_are_ascii_digits(source: Path, option: str, digits: str) -> None:
    sizes = {"--global-size": "4096", "--local-size": "64", option: digits}
    done = predicted(source, *itertools.chain(*sizes.items()))
    assert_refused(done, Exit.USAGE, f"{option} {digits!r}: write one to three positive numbers")


def test_sizes_may_have_spaces_between_them(source: Path) -> None:
    plain = predicted(source, "--global-size", "64,64", "--local-size", "8,8", "--json")
    assert plain.code == 0, plain.err
    spaced = predicted(source, "--global-size", "64, 64", "--local-size", " 8 ,8", "--json")
    assert json.loads(spaced.out)["time_ns"] == json.loads(plain.out)["time_ns"]


@pytest.mark.parametrize("text", ["9" * 200_000, "64," * 100_000, "", ",", "64,,8"])
def test_a_message_about_a_long_size_is_short(source: Path, text: str) -> None:
    done = predicted(source, "--global-size", text, "--local-size", "8")
    assert_refused(done, Exit.USAGE, "write one to three positive numbers")
    assert len(done.err) < 400


@pytest.mark.parametrize("value", ["1_0", "\u0663", "\uff16\uff14", "0b11", "0o7", "1" * 5000])
@pytest.mark.parametrize("name", ["a", "n"])
def test_whole_arguments_are_ascii_digits(model: Model, name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^--arg {name}=") as caught:
        model.predict(SCALE, global_size=64, local_size=8, args={name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value", ["1_0", "\u0663.5", b"1.5", 10**400, 10**5000], ids=lambda one: type(one).__name__
)
def test_an_argument_with_a_fraction_is_plain(model: Model, value: Any) -> None:
    with pytest.raises(BadInput, match=r"^--arg f=.*: 'float' takes a number"):
        model.predict(SCALE, global_size=64, local_size=8, args={"f": value})


def test_arguments_as_texts(model: Model) -> None:
    numbers = {"a": 4096, "n": -16, "f": 0.5}
    plain = model.predict(SCALE, global_size=4096, local_size=64, args=numbers)
    for texts in (
        {"a": "4096", "n": "-16", "f": "0.5"},
        {"a": "+4096", "n": "-0x10", "f": "5e-1"},
        {"a": " 4096 ", "n": "-16", "f": " .5"},
    ):
        assert model.predict(SCALE, global_size=4096, local_size=64, args=texts) == plain


SIZES: tuple[Any, ...] = (
    True, [True], (64, False), np.True_, {64}, frozenset({64}), {64: 8}, {64: 8}.keys(), b"64",
    bytearray(b"64"), "64", ["64"], [b"@"], [], 10**500, [10**5000], np.array(64.0), itertools.count(10**500), itertools.repeat(True),
)  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["global_size", "local_size"])
@pytest.mark.parametrize("size", SIZES, ids=lambda one: type(one).__name__)
def test_sizes_of_the_api_are_whole_numbers(model: Model, size: Any, name: str) -> None:
    sizes = {"global_size": 64, "local_size": 64, name: size}
    with pytest.raises(BadInput, match=f"^{name}=.*: give a whole number, or one for each") as said:
        model.predict(SCALE, **sizes)
    assert len(str(said.value)) < 200


def test_names_of_a_dataset_are_shortened_in_messages(source: Path, tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "data")
    for path in (data / "kernels").glob("*.parquet"):
        table = pq.read_table(path)
        names = pa.array([f"{number}" * 200_000 for number in range(len(table))])
        pq.write_table(table.set_column(table.column_names.index("name"), "name", names), path)
    mend_manifest(data)
    done = predicted(source, "--global-size", 64, "--local-size", 8, "--measured", data)
    assert_refused(done, Exit.BAD_INPUT, "its kernels are 000", " …, 111")
    assert len(done.err) < 1000
    with pytest.raises(StoreError, match=r"has no kernel 'x{80} …': name another") as caught:
        api.open_dataset(data).of_kernel("x" * 200_000)
    assert len(str(caught.value)) < 1000

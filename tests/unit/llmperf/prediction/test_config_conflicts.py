"""Launches of ``predict --configs`` that contradict themselves, are too many or too large."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.prediction import configs
from llmperf.prediction.configs import read_configs
from llmperf_common.records import Access, Argument, ArgumentKind, Signature
from trainer.errors import BadInput
from trainer.prediction.arguments import read_arguments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"global_size": 4096, "global_size": 8192, "local_size": 64}', "line 1: the key 'global_size' appears twice"),
        ('[{"global_size": 1, "local_size": 1, "args": {"n": 1, "n": 2}}]', "the key 'n' appears twice"),
        ("global_size,local_size,x,arg.x\n64,64,10,20\n", "column 'x'"),
        ('global_size,local_size,x,args\n64,64,10,"{""x"": 20}"\n', "line 2: argument 'x' has a column and is in args"),
        ('global_size,local_size,args\n64,64,"{""x"": 20, ""x"": 30}"\n', "line 2: args: the key 'x' appears twice"),
        ('{"global_size": 1e308, "local_size": 64}', "global_size 1e+308: give one to three"),
        (f'{{"global_size": {2**63}, "local_size": 64}}', "global_size 9223372036854775808: give"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "launches"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_configs(file)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_a_file_has_a_largest_number_of_launches(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "_MAX_LAUNCHES", 3)
    file = tmp_path / "launches"

    def write(number: int) -> None:
        if form == "lines":
            file.write_text('{"global_size": 64, "local_size": 64}\n' * number, encoding="utf-8")
        else:
            pq.write_table(
                pa.table({"global_size": [64] * number, "local_size": [64] * number}), file
            )

    write(3)
    assert len(read_configs(file)) == 3
    write(4)
    with pytest.raises(BadInput, match="more than 3 launches"):
        read_configs(file)


def test_the_rows_of_a_small_parquet_file_are_counted_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "launches"
    rows = pa.repeat(pa.scalar(64, pa.uint8()), 2_000_000)
    pq.write_table(pa.table({"global_size": rows, "local_size": rows}), file)
    assert file.stat().st_size < 100_000
    with pytest.raises(BadInput) as caught:
        read_configs(file)
    assert str(caught.value).startswith(f"{file}: more than 1,000,000 launches")


def test_a_map_of_arrow_that_names_an_argument_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "launches"
    args = pa.array([[("n", 1), ("n", 2)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"global_size": [64], "local_size": [64], "args": args}), file)
    with pytest.raises(BadInput, match="row 1: args: a name appears twice"):
        read_configs(file)


def scalar(kind: str) -> Signature:
    one = Argument(
        position=0, name="alpha", kind=ArgumentKind.SCALAR, type_name=kind, scalar_type=kind, vector_width=1,
        access=Access.NONE, element_bytes=4,
    )  # fmt: skip
    return Signature(
        arguments=(one,), dims=1, required_local_size=None, static_local_bytes=0, static_features={}
    )


@pytest.mark.parametrize(("kind", "largest"), [("half", 65504.0), ("float", 3.4028234663852886e38)])
def test_a_float_takes_what_its_type_holds(kind: str, largest: float) -> None:
    assert read_arguments(scalar(kind), {"alpha": -largest}) == {0: -largest}
    with pytest.raises(BadInput, match=f"'{kind}' holds -"):
        read_arguments(scalar(kind), {"alpha": largest * 1.001})
    nearly = {"half": 65519.0, "float": 3.4028235e38}[kind]  # rounds to the largest
    assert read_arguments(scalar(kind), {"alpha": nearly}) == {0: nearly}
    assert read_arguments(scalar("double"), {"alpha": 1e308}) == {0: 1e308}

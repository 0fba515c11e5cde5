"""What of a source is a comment, a text, a name or a number, and that to find out takes no longer for a hostile one."""

import time
from collections.abc import Callable

import pytest

from llmperf_common.families.families import assign_families
from llmperf_common.families.tokens import (
    is_builtin,
    number_class,
    tokenize,
    without_comments,
    without_texts,
)
from workers.source.kernel_headers import kernel_headers, mentions_kernel
from workers.source.macro_values import value_for
from workers.source.source_checks import refused


def test_names_that_mean_the_same_everywhere():
    same = ["float4", "convert_float4", "get_global_id", "CLK_LOCAL_MEM_FENCE", "__kernel"]
    assert all(map(is_builtin, same))
    assert not any(map(is_builtin, ["REAL4", "gid", "sum"]))


def test_numbers_have_classes():
    numbers = ["0", "1", "2", "0x1F", "2.5f", "1e3", "0x1.8p3", "3f"]
    classes = ["0", "1", "int", "int", "float", "float", "float", "float"]
    assert [number_class(one) for one in numbers] == classes


def test_a_text_that_is_not_closed_ends_with_its_line():
    assert tokenize("a 'don't b\nc \"d\n e") == ["a", "'don'", "t", "b", "c", '"d', "e"]
    assert tokenize('"a\\"b" c "\\') == ['"a\\"b"', "c", '"', "\\"]
    assert tokenize("#error don't // stop\nint a;")[3:] == ["'t // stop", "int", "a", ";"]


def test_lines_keep_their_numbers():
    source = 'a /* 1\n2 */ "//" // b\\\n c\nd'
    assert without_comments(source).split("\n") == ["a  ", ' "//"  ', "", "d"]
    assert without_texts(source).split("\n") == ["a  ", "    ", "", "d"]


HOSTILE = '"\\"' * 100_000
HEADERS = "kernel void f(" * 30_000
BRACKETS = "local int t[" * 30_000 + "N" * 30_000


@pytest.mark.parametrize(
    "read",
    [
        lambda: tokenize(HOSTILE),
        lambda: tokenize(HOSTILE + "\\"),
        lambda: mentions_kernel(HOSTILE.replace('"', "'")),
        lambda: refused(HOSTILE),
        lambda: kernel_headers(HEADERS),
        lambda: value_for("N", BRACKETS + " N" * 30_000),
        lambda: value_for("N", "#if" + " " * 200_000 + "( N" + " " * 200_000),
    ],
)
def test_a_hostile_text_takes_no_square_of_its_length(read: Callable[[], object]):
    start_s = time.process_time()
    read()
    assert time.process_time() - start_s < 2


def test_a_text_that_nobody_wrote_is_not_split_into_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llmperf_common.families.families.MAX_SOURCE_CHARS", 10)
    long = "x[i] = y[i] + 1;"
    families = assign_families([("a", long, ""), ("b", long, ""), ("c", long + " ", "")])
    assert families == {"a": "a", "b": "a", "c": "c"}

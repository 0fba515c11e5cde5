"""Prompt forms: what a prefix and a suffix say, word for word and number for number."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from tests.support.factories.prompt_factory import LAUNCHES, PLAIN, SPARSE, dataset_rows, launch
from trainer.prompt import compact, numeric, paper
from trainer.prompt.encode import distinct_kernels
from trainer.prompt.kernel_text import macros_and_flags
from trainer.prompt.launch_numbers import launch_numbers
from trainer.prompt.source_pieces import plain_source
from trainer.regressor_config import PromptConfig

PAPER = """Predict time for the following OpenCL kernel:
```kernel void plain(global float4* a) {
  a[get_global_id(0)] += 1.0f;
}```

Given input:
Argument at position 0 is `a`, which is global buffer of type `float4*` with size `4096`

Given kernel are executed with global size equals `cl::NDRange(4096)`, local work-group size equals `cl::NDRange(64)`

"""

PAPER_INPUTS = """
Given input:
Argument at position 0 is `rows`, which is global buffer of type `int*` with size `8589934592`
Argument at position 1 is `x`, which is constant buffer of type `real*` with size `7`
Argument at position 2 is `cache`, which is local buffer of type `float*` with size `256`
Argument at position 3 is `scale`, which is scalar of type `float` with value `-1e-05`
Argument at position 4 is `n`, which is scalar of type `long` with value `-3`

Given kernel are executed with global size equals `cl::NDRange(2147483648, 6)`, local work-group size equals `cl::NDRange(256, 2)`

"""

COMPACT_PREFIX = """device synth
kernel sparse
#define WIDTH 16
#define FAST 1
flags -cl-fast-relaxed-math
arg 0 global read int* rows
arg 1 constant read real* (float, 4 bytes) x
arg 2 local read_write float* cache
arg 3 scalar float scale
arg 4 scalar long n
typedef float real;
kernel void sparse(global const int *rows, constant real *x,
local float *cache, float scale, long n) {
if (get_global_id(0) < n) cache[get_local_id(0)] = x[rows[get_global_id(0)]] * scale * WIDTH;
}
"""

COMPACT_SUFFIX = """global 1 0 2 4
local 6 4
groups 1 6
rows 1 0 2 5 below 4 9 9 9
x 5 0 0 0
cache 6 4
scale 0 . 5
n 1 0 2 4
"""


def parts_of(*launches_of):
    rows = dataset_rows(launches_of)
    kernels, kernel = distinct_kernels(rows)
    return kernels, kernel, launch_numbers(rows.samples)


def named(suffixes, row):
    """A launch's numeric tokens as (slot name, number)."""
    inside = slice(suffixes.start[row], suffixes.start[row + 1])
    return [
        (numeric.SLOTS[-1 - slot], value)
        for slot, value in zip(suffixes.ids[inside], suffixes.values[inside], strict=True)
    ]


def test_the_paper_s_text_is_word_for_word():
    kernels, kernel, numbers = parts_of((PLAIN, [launch(PLAIN, (4096,), (64,), [4096])]))
    (suffix,) = paper.suffixes(kernels, kernel, numbers)
    assert paper.BEFORE_CODE + PLAIN.source + paper.AFTER_CODE + suffix == PAPER


def test_the_paper_s_inputs_name_space_type_and_number():
    texts = paper.suffixes(*parts_of((SPARSE, LAUNCHES)))
    assert texts[1] == PAPER_INPUTS
    assert "`cl::NDRange(96, 10, 4)`" in texts[2]
    assert "`cl::NDRange(32, 5, 1)`" in texts[2]


def test_a_compact_prefix_says_what_is_known_before_a_launch():
    (kernel,), _, _ = parts_of((SPARSE, LAUNCHES))
    assert compact.before_code(kernel) + plain_source(kernel.source) == COMPACT_PREFIX


def test_a_compact_suffix_has_its_digits_apart():
    texts = compact.suffixes(*parts_of((SPARSE, LAUNCHES)))
    assert texts[0] == COMPACT_SUFFIX
    assert texts[1].startswith(
        "global 2 1 4 7 4 8 3 6 4 8 x 6\nlocal 2 5 6 x 2\ngroups 8 3 8 8 6 0 8 x 3\n"
    )
    assert "scale - 1 e - 0 5\nn - 3\n" in texts[1]
    for text in texts:
        assert not any(a.isdigit() and b.isdigit() for a, b in itertools.pairwise(text))


def test_numeric_tokens_are_slot_and_number():
    _, _, numbers = parts_of((SPARSE, LAUNCHES), (PLAIN, [launch(PLAIN, (64,), (64,), [1])]))
    suffixes = numeric.numeric_suffixes(numbers)
    assert suffixes.ids.dtype == np.int32
    assert suffixes.values.dtype == np.float64
    assert named(suffixes, 0) == [
        ("global_size_0", 1024),
        ("local_size_0", 64),
        ("num_groups_0", 16),
        ("argument_0", 1025),
        ("argument_limit_0", 4999),
        ("argument_1", 5000),
        ("argument_2", 64),
        ("argument_3", 0.5),
        ("argument_4", 1024),
        ("work_items", 1024),
    ]
    assert named(suffixes, 1) == [
        ("global_size_0", 2**31),
        ("local_size_0", 256),
        ("num_groups_0", 2**23),
        ("global_size_1", 6),
        ("local_size_1", 2),
        ("num_groups_1", 3),
        ("argument_0", 2**33),
        ("argument_1", 7),
        ("argument_2", 256),
        ("argument_3", -1e-5),
        ("argument_4", -3),
        ("work_group_items", 512),
        ("work_groups", 3 * 2**23),
        ("work_items", 6 * 2**31),
    ]
    assert [value for _, value in named(suffixes, 2)[:9]] == [96, 32, 3, 10, 5, 2, 4, 1, 4]
    assert named(suffixes, 2)[-1] == ("work_items", 3840)
    assert [name for name, _ in named(suffixes, 3)] == [
        "global_size_0",
        "local_size_0",
        "num_groups_0",
        "argument_0",
        "work_items",
    ]


def test_large_numbers_stay_finite_and_arguments_without_a_number_are_left_out():
    rows = dataset_rows([(SPARSE, LAUNCHES)])
    suffixes = numeric.numeric_suffixes(launch_numbers(rows.samples))
    assert dict(named(suffixes, 2))["argument_3"] == 1e300
    assert np.all(np.isfinite(suffixes.values))
    args = rows.samples.column("args").to_pylist()
    args[0][3]["value"] = None
    samples = rows.samples.set_column(
        rows.samples.column_names.index("args"),
        "args",
        pa.array(args, rows.samples.schema.field("args").type),
    )
    left = dict(named(numeric.numeric_suffixes(launch_numbers(samples)), 0))
    assert "argument_3" not in left
    assert left["argument_4"] == 1024


def test_a_dataset_from_before_buffer_contents_is_read():
    rows = dataset_rows([(SPARSE, LAUNCHES)])
    old = pa.list_(
        pa.struct(
            [
                ("position", pa.int32()),
                ("kind", pa.string()),
                ("elements", pa.int64()),
                ("value", pa.float64()),
            ]
        )
    )
    args = [
        [{name: item[name] for name in ("position", "kind", "elements", "value")} for item in row]
        for row in rows.samples.column("args").to_pylist()
    ]
    samples = rows.samples.set_column(
        rows.samples.column_names.index("args"), "args", pa.array(args, old)
    )
    names = [name for name, _ in named(numeric.numeric_suffixes(launch_numbers(samples)), 0)]
    assert "argument_0" in names
    assert "argument_limit_0" not in names


def test_a_model_is_not_given_slots_that_it_does_not_know():
    _, _, numbers = parts_of((SPARSE, LAUNCHES))
    old = tuple(name for name in numeric.SLOTS if not name.startswith(("num_", "argument_limit")))
    suffixes = numeric.numeric_suffixes(numbers, old)
    first = suffixes.ids[: suffixes.start[1]]
    assert [old[-1 - slot] for slot in first] == [
        "global_size_0",
        "local_size_0",
        *(f"argument_{position}" for position in range(5)),
        "work_items",
    ]
    assert suffixes.values[suffixes.start[1] - 1] == 1024


def test_the_table_of_slots_only_grows():
    """Stored models name these slots: their order is part of the contract."""
    assert len(set(numeric.SLOTS)) == numeric.NUM_SLOTS == 12 + 2 * 64
    assert numeric.SLOTS[:12] == (
        *("global_size_0", "global_size_1", "global_size_2"),
        *("local_size_0", "local_size_1", "local_size_2"),
        *("num_groups_0", "num_groups_1", "num_groups_2"),
        *("work_group_items", "work_groups", "work_items"),
    )
    assert numeric.SLOTS[12] == "argument_0"
    assert numeric.SLOTS[-1] == "argument_limit_63"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ((), ())),
        ("-D A -DB=2 -w", (("A", "B=2"), ())),
        ("-DS='a b' -cl-std=CL2.0 -I dir", (("S=a b",), ("-cl-std=CL2.0",))),
        ("-DA='1 -DB", (("A='1", "B"), ())),
        ("-D", ((), ())),
    ],
)
def test_macros_and_flags_come_from_the_build_options(options, expected):
    assert macros_and_flags(options) == expected


def test_the_default_form_is_numeric():
    assert PromptConfig().form == "numeric"

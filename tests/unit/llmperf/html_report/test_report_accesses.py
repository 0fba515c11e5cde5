"""Maps of memory accesses as drawn: cells, shades, words and data, from traces made by hand."""

from __future__ import annotations

import csv
import dataclasses
import re
from urllib.parse import unquote

import pyarrow as pa
import pytest

from llmperf.access_traces import traced_accesses
from llmperf.html_report import KernelChoice, render_report
from llmperf.html_report.kernel.accesses import access_maps
from llmperf_common.features.accesses import AccessMap, AccessTrace, AccessUse, AccessView
from llmperf_common.store.tables.rows import kernels_table, samples_table
from tests.support.factories.report_factory import EVIL, check_page, make_dataset
from tests.support.factories.synthetic_dataset import make_dataset as synthetic_dataset

ARGUMENTS = [{"position": 0, "name": "in"}, {"position": 1, "name": "out"}]


def diagonal(
    columns: int, *, each: int = 1, position: int = 0, use: AccessUse = AccessUse.LOAD
) -> AccessMap:
    return AccessMap(
        position=position,
        use=use,
        first_byte=1024,
        bytes_a_row=4,
        num_rows=columns,
        cells=tuple((n, n, each) for n in range(columns)),
        num_accesses=columns * each,
    )


def view(*maps: AccessMap, groups: tuple[int, ...] = (5,), items: int = 1) -> AccessView:
    return AccessView(groups=groups, items_a_column=items, maps=maps)


def trace(launch: AccessView, group: AccessView | None = None) -> AccessTrace:
    return AccessTrace(global_size=(640,), local_size=(64,), launch=launch, group=group)


def plain(text: str) -> str:
    return re.sub("[\u202f\u00a0]", " ", text)


def cells_of(html: str) -> list[tuple[str, str]]:
    """Return class and data of each path of cells."""
    return re.findall(r'<path class="c(\d fill cells shade\d)" d="([^"]*)">', html)


def test_a_diagonal_is_drawn_as_one() -> None:
    html = access_maps(trace(view(diagonal(64))), ARGUMENTS)
    check_page_of(html)
    ((shade, data),) = cells_of(html)
    assert shade == "0 fill cells shade4"  # the largest count has the darkest shade
    boxes = re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H", data)
    assert len(boxes) == 64
    lefts, bottoms, rights, tops = (list(map(float, one)) for one in zip(*boxes, strict=True))
    assert lefts == sorted(lefts)
    assert bottoms == sorted(bottoms, reverse=True)  # SVG counts downwards
    assert lefts[1:] == rights[:-1]  # no gap and no overlap
    assert bottoms[1:] == tops[:-1]
    words = plain(html)
    assert "64 accesses of 64 work-items to bytes 1 024 to 1 279" in words
    assert "begins at byte 1 024 in the first column and 1 276 in the last" in words
    assert "it rises 63 times, stays 0 times and falls 0 times." in words
    assert "work-item 325: 1 access to bytes 1 044\u20131 047" in words  # 5 * 64 + 5
    assert words.count('class="hit"') == 64


def check_page_of(html: str) -> None:
    page = render_report(dataset=make_dataset(20, 1), evaluation=None)
    check_page(page.replace("</main>", f"{html}</main>"))


def test_a_broadcast_is_a_thin_row_that_stays() -> None:
    flat = dataclasses.replace(
        diagonal(64), num_rows=1, cells=tuple((n, 0, 1) for n in range(64)), num_accesses=64
    )
    html = access_maps(trace(view(flat)), ARGUMENTS)
    ((_, data),) = cells_of(html)
    heights = {
        float(bottom) - float(top)
        for bottom, top in re.findall(r"M[\d.]+ ([\d.]+)H[\d.]+V([\d.]+)", data)
    }
    assert all(height < 10 for height in heights)  # of 160: 4 of the 128 bytes of a line
    assert "rises 0 times, stays 63 times and falls 0 times" in html


def test_two_views_stand_side_by_side_and_a_missing_map_keeps_its_place() -> None:
    launch = view(
        diagonal(10, each=16),
        diagonal(10, each=2, position=1, use=AccessUse.STORE),
        groups=tuple(range(10)),
        items=64,
    )
    found = trace(launch, view(diagonal(64)))
    html = access_maps(found, ARGUMENTS)
    check_page_of(html)
    titles = re.findall(r'aria-label="([^"]+)" style="max-width:456', html)
    assert titles == [
        "in[]: loads of 10 work-groups, by work-item and byte",
        "in[]: loads of work-group 5, by work-item and byte",
        "out[]: stores of 10 work-groups, by work-item and byte",
    ]
    assert "out[]: stores: nothing to show because work-group 5 has none." in html
    assert [shade[0] for shade, _ in cells_of(html)] == ["0", "0", "3"]
    assert "all 10 work-groups, and work-group 5 alone" in html
    assert "10 work-groups: accesses per bin" in html
    assert "work-group 5: accesses per bin" in html


def test_the_data_of_a_map_are_its_cells() -> None:
    tall = dataclasses.replace(
        diagonal(2), cells=((0, 0, 3), (0, 1, 3), (0, 2, 4), (1, 5, 3)), num_rows=6
    )
    html = access_maps(trace(view(tall, items=32)), ARGUMENTS)
    (address,) = re.findall(r'href="data:text/csv;charset=utf-8,([^"]+)"', html)
    rows = list(csv.DictReader(unquote(address).splitlines()))
    assert [list(row.values()) for row in rows] == [
        ["320", "351", "1024", "1031", "4", "3"],  # two rows that are alike
        ["320", "351", "1032", "1035", "4", "4"],
        ["352", "383", "1044", "1047", "4", "3"],
    ]


def test_what_is_not_drawn_is_said() -> None:
    beyond = dataclasses.replace(diagonal(4), num_outside=7)
    many = [dataclasses.replace(beyond, position=n) for n in range(10)]
    names = [{"position": n, "name": f"b{n}"} for n in range(10)]
    html = access_maps(dataclasses.replace(trace(view(*many)), without_barriers=True), names)
    assert "70 accesses outside of the buffers are not drawn." in html
    assert "Only the first 8 of 10 pairs of a buffer and a use are shown." in html
    assert "did not wait for each other at barriers" in html
    assert "b8[]" not in html
    nothing = access_maps(trace(view()), ARGUMENTS)
    assert "access no global or constant memory" in nothing
    assert access_maps(None, ARGUMENTS) == ""


def test_strangers_names_and_reasons_are_escaped() -> None:
    evil = [{"position": 0, "name": EVIL}, {"position": 1, "name": None}]
    html = access_maps(
        trace(view(diagonal(8), diagonal(8, position=1, use=AccessUse.ATOMIC))), evil
    )
    check_page_of(html)
    assert "1[]: atomic operations" in html
    check_page_of(access_maps(EVIL, evil))


def test_a_page_shows_the_maps_of_the_kernels_that_have_them() -> None:
    dataset = make_dataset(200, 4)
    first, second, *_ = dataset.kernels["kernel_id"].to_pylist()
    dataset = dataclasses.replace(
        dataset, accesses={first: trace(view(diagonal(64))), second: "its source is a secret"}
    )
    page = render_report(
        dataset=dataset, evaluation=None, kernels=KernelChoice(names=(first, second))
    )
    check_page(page)
    assert page.count("Memory accesses of the launch") == 1
    assert "memory accesses were not traced: its source is a secret." in page


def tables() -> tuple[pa.Table, pa.Table]:
    """Return samples and kernels of a kernel with four launches."""
    tasks = synthetic_dataset(num_kernels=1, num_configs=4).tasks
    return samples_table(tasks), kernels_table(tasks)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"source": None}, "does not hold the kernel's source"),
        ({"dims": None}, "earlier version"),
        ({"args": [{"position": 0, "leaves": None}]}, "earlier version"),
    ],
)
def test_a_kernel_that_cannot_be_launched_again_has_a_reason(
    changed: dict[str, object], why: str
) -> None:
    samples, kernels = tables()
    row = {**kernels.to_pylist()[0], **changed}
    kernels = pa.Table.from_pylist([row], schema=kernels.schema)
    (found,) = traced_accesses(samples, kernels, [row["name"]]).values()
    assert isinstance(found, str)
    assert why in found


def test_a_launch_that_does_not_fit_its_kernel_is_not_traced() -> None:
    samples, kernels = tables()
    name, rows = kernels["name"][0].as_py(), samples.to_pylist()
    for changed, why in (
        ({"local_size": [0]}, "the launch's arguments or sizes do not fit the kernel"),
        ({"local_size": [3]}, "the launch's arguments or sizes do not fit the kernel"),
        ({"args": []}, "the launch's arguments or sizes do not fit the kernel"),
        ({"status": "hang"}, "no launch of this kernel was timed"),
    ):
        broken = pa.Table.from_pylist([{**one, **changed} for one in rows], schema=samples.schema)
        (found,) = traced_accesses(broken, kernels, [name]).values()
        assert found == why
    unread = [{**one, "args": [{**given, "kind": "odd"} for given in one["args"]]} for one in rows]
    broken = pa.Table.from_pylist(unread, schema=samples.schema)
    (found,) = traced_accesses(broken, kernels, [name]).values()
    assert str(found).startswith("the launch's row cannot be read: ")
    assert traced_accesses(samples, kernels, [name, "unheard_of"]) == {}

"""benchmarks/data/suites.py: work-items that leave at once are distinguished from those that work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.data.suites import Verdict, staying_shares, summary
from tests.support.reading import kernels_from_source
from tests.support.sampling import slow_but_each
from workers.device.interface import DeviceRef
from workers.discovery.find import choose

_VERDICT = Verdict(
    suite="shoc", path="a/k.cl", kernel="k", has_images=False, code="ok", ok=2, failures="",
    writes_output=True, staying_share=1.0, roles="", detail="",
)  # fmt: skip


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("body", "share"),
    slow_but_each(
        3,
        [
            ("if (i >= n) return; a[i] = b[i];", 0.25),
            ("if (i < n) a[i] = b[i];", 0.25),
            ("if (b[i] > 2) a[i] = 1;", 0.0),
            ("if (i == 0) for (int j = 0; j < n; j++) a[j] = b[j];", 1 / 256),
            ("a[i] += b[i];", 1.0),
        ],
    ),
)
def test_the_share_of_work_items_that_stay(body, share):
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef), ref
    source = f"__kernel void k(__global float *a, __global const float *b, int n) {{ int i = get_global_id(0); {body} }}"
    (kernel,) = kernels_from_source(source)
    row = {
        "status": "ok", "global_size": [256], "local_size": [32], "seed": 1,
        "args": [
            {"position": 0, "elements": 256, "value": None, "contents_limit": None},
            {"position": 1, "elements": 256, "value": None, "contents_limit": None},
            {"position": 2, "elements": None, "value": 64.0, "contents_limit": None},
        ],
    }  # fmt: skip
    assert list(staying_shares([(kernel, [row]), (kernel, [])], ref)) == [share, None]


def test_the_summary_names_what_falls_short():
    verdicts = [
        _VERDICT,
        replace(_VERDICT, kernel="silent", writes_output=False),
        replace(_VERDICT, kernel="leaver", staying_share=0.1),
        replace(_VERDICT, kernel="faulty", ok=0, code="device_fault"),
        replace(_VERDICT, kernel="picture", ok=0, code="unsupported", has_images=True),
    ]
    told = list(summary(verdicts))
    assert told[0] == (
        "shoc: 4 kernels without images; 3 with an ok sample (75.0 %); 1 of them write and stay (33.3 %)"
    )
    assert "device_fault: k.cl:faulty" in told
    assert "silent: k.cl:silent" in told
    assert "leaves at once, or not counted: k.cl:leaver" in told

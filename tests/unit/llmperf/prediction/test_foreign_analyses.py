"""Memory analyses in a model's folder that another author has written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from llmperf.prediction.analysing import Analyst
from llmperf_common.schemas import KERNELS
from llmperf_common.store.tables.analysis_rows import ANALYSIS_COLUMNS
from tests.support.factories.dataset_factory import make_kernel
from trainer.errors import BadInput

TERM = {"factors": ["global_size_0"] * 17, "coefficient": 1}
EXTENT = {"position": 0, "constant": 1, "terms": [], "validated": True}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"analysis": [EXTENT | {"terms": [TERM]}]}, "more terms or factors"),
        ({"analysis": [EXTENT | {"terms": [{**TERM, "factors": []}] * 257}]}, "more terms or"),
        ({"analysis": [EXTENT | {"terms": [None]}]}, "NoneType"),
        ({"analysis": [None]}, "NoneType"),
        ({"index_roles": [{"position": 0, "rule": "x", "targets": []}]}, "'x' is not a valid"),
    ],
)
def test_an_analysis_that_no_probe_gives_is_bad_input(columns: dict[str, Any], words: str) -> None:
    """Evaluated for each launch, a product of 100,000 sizes kept ``predict`` busy without an end."""
    kernel = make_kernel()
    row = {"kernel_id": kernel.kernel_id, "analysis": [], **columns}
    schema = pa.schema([KERNELS.field(name) for name in ("kernel_id", *ANALYSIS_COLUMNS)])
    analyst = Analyst(stored=pa.Table.from_pylist([row], schema=schema), may_probe=False)
    with pytest.raises(BadInput, match=words):
        analyst.knows(kernel)

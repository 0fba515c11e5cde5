"""What a child of ours inherits, and what rows say about this host."""

from __future__ import annotations

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.files.host_paths import without_host_paths
from workers.sandbox.child_environment import child_environment


def test_secrets_stay_with_the_parent() -> None:
    secrets = {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "b", "LLMPERF_LEDGER": "redis://:c@h", "RAY_AUTH_TOKEN": "d",
        "HF_TOKEN": "e", "GITHUB_TOKEN": "f", "NVIDIA_API_KEY": "g", "CUDA_SECRET": "h", "REDISCLI_AUTH": "i",
        "LLMPERF_S3_ENDPOINT": "http://k:s@minio", "PIP_INDEX_URL": "https://u:p@x", "SSH_AUTH_SOCK": "/x", "PGPASSWORD": "j",
        "KUBECONFIG": "/y", "POCL_PASSWORD": "k", "CUDA_PASS": "m", "OMP_CRED": "n", "CL_PWD": "o", "OMP_URL": "https://u:p@x/y", "http_proxy": "http://u:p@x", "ANYTHING": "l",
    }  # fmt: skip
    kept = {
        "PATH": "/bin", "HOME": "/h", "LANG": "C", "LC_ALL": "C", "LD_LIBRARY_PATH": "/l", "PYTHONPATH": "/p", "TMPDIR": "/t",
        "POCL_DEBUG": "1", "OCL_ICD_VENDORS": "/o", "CUDA_VISIBLE_DEVICES": "0", "LLMPERF_POCL_ICD": "", "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": "/c", "CL_CONFIG_CPU_FORCE_LOCAL_MEM_SIZE": "1",
    }  # fmt: skip
    assert child_environment(environ={**secrets, **kept}) == kept


def test_what_a_child_is_given_counts() -> None:
    found = child_environment({"A": "1", "PATH": "x"}, {"A": "2"}, environ={"PATH": "/bin"})
    assert found == {"PATH": "x", "A": "2"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/.cache/pocl/kcache/tempfile_1.cl:3:1: error", "tempfile_1.cl:3:1: error"),
        (
            "In file included from </opt/pocl/share/_kernel.h>:",
            "In file included from <_kernel.h>:",
        ),
        ('  File "/usr/lib/python3/x.py", line 2', '  File "x.py", line 2'),
        ("Options used: -I /home/ann/venv/cl -I/opt/cl -DA=1", "Options used: -I cl -Icl -DA=1"),
        ("x[0] = a/b; // see docs/x.md and 3/tmp/4", "x[0] = a/b; // see docs/x.md and 3/tmp/4"),
        ("a /b/c of no host", "a /b/c of no host"),
        ("//home//ann///secret.cl", "secret.cl"),
    ],
)
def test_paths_of_the_host_are_left_out(text: str, shown: str) -> None:
    assert without_host_paths(text) == shown


def test_a_log_of_slashes_takes_no_time() -> None:
    failure = Failure(code=FailureCode.BUILD_ERROR, stage=Stage.BUILD, detail="/tmp" * 100_000)
    assert len(without_host_paths(failure.detail)) < 10_000
    without_host_paths("/tmp/" * 200_000 + " " + "/" * 200_000)

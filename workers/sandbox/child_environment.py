"""The environment of a child process that compiles or runs untrusted code.

Owns the names of the variables that it inherits: those that the system, Python and the OpenCL
runtimes need. All other variables of the parent, above all credentials, are not passed on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from llmperf_common.installation import path_of_packages

_NAMES = frozenset(
    {
        "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "DISPLAY", "GLIBC_TUNABLES", "HOME", "HOSTNAME",
        "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "LLMPERF_LOCK_DIR",
        "LLMPERF_POCL_ICD", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ",
        "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
    }
)  # fmt: skip
_PREFIXES = re.compile(
    r"(?:LC_|PYTHON|OCL_|OPENCL_|CL_|POCL_|PYOPENCL_|CUDA_|NVIDIA_|NV_|__NV|__GL_|INTEL_|IGC_|NEO_"
    r"|CLOVER_|MESA_|RUSTICL_|LIBGL_|SYCL_|ZE_|ZES_|ROCM_|ROCR_|HIP_|HSA_|AMD_|GPU_|OMP_|GOMP_|KMP_"
    r"|MKL_|OPENBLAS_|NUMEXPR_|VECLIB_|TBB_|MALLOC_|ASAN_|LSAN_|TSAN_|UBSAN_|COV_|COVERAGE_|LLVM_"
    r"|LIBCLANG_|CLANG_)[A-Za-z0-9_]*"
)
_SECRET = re.compile(
    r"TOKEN|SECRET|(?<!BY)PASS|CRED|AUTH|PRIVATE|SESSION|COOKIE"
    r"|(?:^|_)(?:KEY|PWD)(?:$|_)|APIKEY",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")
PYTHON = (sys.executable, "-P")
"""The command of a child's interpreter. With ``-P`` it imports nothing from the working directory,
where a stranger's ``json.py`` may lie."""


def child_environment(
    *more: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a child's variables: those that it may inherit and ``more``, which takes precedence.

    >>> child_environment({"A": "1"}, environ={"PATH": "/bin", "NVIDIA_API_KEY": "x"})
    {'PATH': '/bin', 'A': '1'}
    """
    ours = os.environ if environ is None else environ
    child = {
        name: value
        for name, value in ours.items()
        if is_inherited(name) and not _URL_WITH_PASSWORD.search(value)
    }
    if environ is None:
        child.update(path_of_packages())
    for one in more:
        child.update(one)
    return child


def is_inherited(name: str) -> bool:
    """Return whether a child may have this variable of its parent.

    >>> is_inherited("POCL_DEBUG"), is_inherited("LLMPERF_LEDGER"), is_inherited("CUDA_TOKEN")
    (True, False, False)
    """
    return (name in _NAMES or _PREFIXES.fullmatch(name) is not None) and not _SECRET.search(name)

"""What all tests share: Hypothesis without deadlines, the same examples on every CI run, and our wheel."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from llmperf_common.installation import loaded_installation
from tests.support.wheel import build_wheel

# Read once, when pyopencl is first imported. Its cache fails with Intel's runtime, and a cached binary is no build.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
# Read when torch, LightGBM or NumPy is first imported. Three processes of tests share two cores: threads of a pool that wait
# for one another would burn the others' time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background job ignores Ctrl-C, and so would the commands that tests interrupt: they inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline measures the machine; a random example that fails belongs on a developer's desk, not in a colleague's CI.
settings.register_profile("llmperf", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("llmperf")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs at night only is slow: ``not slow`` leaves it out."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built once; the workers of pytest-xdist share it. Not to be changed."""
    pytest.importorskip("setuptools", minversion="77", reason="the build backend, of the dev extra")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return build_wheel(tmp_path_factory.mktemp("wheel"))
    folder = tmp_path_factory.getbasetemp().parent / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return next(folder.glob("*.whl"), None) or build_wheel(folder)


@pytest.fixture(autouse=True)
def _installation_is_noted_anew() -> None:
    """Let a developer edit a file while the tests run: only the tests of that moment may fail."""
    loaded_installation.cache_clear()

"""``--cluster`` without a cluster: what the Ray that it starts opens to others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from llmperf_common.extras import require
from llmperf_common.ray_sessions import own_ray
from tests.support.collecting import Collect, replay_file, write_kernels
from tests.support.listening import family_of, listening
from tests.support.servers.redis_server import RedisServer

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
SECRET = "Zq7/pass@word#1"
STRANGER = "import ray, sys; ray.init(address=sys.argv[1]); print('inside')"


class Watch:
    """What is seen of a command and everything that it starts, while it runs.

    The command's own words come from who started it: in the first moment after the start the system shows none.
    """

    def __init__(self, command: subprocess.Popen[str]) -> None:
        self._pid = command.pid
        assert isinstance(command.args, list)
        self._own = [str(word) for word in command.args]
        self.addresses: dict[str, set[str]] = {}
        self.modes: dict[str, str | None] = {}
        self.arguments = ""
        self.inherited = ""

    def look(self) -> None:
        """Look once."""
        for address, programs in listening(self._pid).items():
            self.addresses.setdefault(address, set()).update(programs)
        for process in family_of(self._pid):
            with contextlib.suppress(psutil.Error):
                words = (
                    process.cmdline()
                )  # before its environment: it may begin its program between the two
                self.arguments += f"{words}\n"
                environment = process.environ()
                if process.name() in ("gcs_server", "raylet"):
                    self.modes[process.name()] = environment.get("RAY_AUTH_MODE")
                if (
                    words != self._own
                ):  # else it is the driver, or forked, and its program is yet to come
                    self.inherited += f"{words}: {environment}\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that wants ``SECRET``."""
    made = RedisServer(tmp_path / "redis")
    with made.client() as client:
        client.config_set("requirepass", SECRET)
    yield made
    made.kill()


def files_with_secret(folder: Path) -> list[Path]:
    """Return the files in which the password stands, in one of its forms."""
    forms = [form.lower().encode() for form in (SECRET, quote(SECRET, safe=""))]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes().lower() for form in forms)
    ]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_local_cluster_is_closed_and_tells_no_password(
    tmp_path: Path, server: RedisServer
) -> None:
    """Before, its servers listened on all interfaces, and ``disabled`` was taken from the shell."""
    names = [f"k{n}" for n in range(6)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.05} for name in names]
    options = ("--cluster", "--samples-per-kernel", "4", "--set", "timing.spin_up_ms=0")
    with tempfile.TemporaryDirectory(prefix="r") as rays:  # short: sockets lie in it
        environment = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_ADDRESS": "local",
            "TMPDIR": rays,
            "HOME": str(tmp_path / "home"),
            "LLMPERF_LEDGER": f"Redis://:{quote(SECRET, safe='')}@127.0.0.1:{server.port}/0",
        }
        running = Collect(
            write_kernels(tmp_path / "kernels", names),
            tmp_path / "data",
            replay_file(tmp_path / "r.json", behaviours=slow),
            options,
            environment,
        ).start()
        watch = Watch(running)
        modes: set[int] = set()
        num_logs, with_secret = 0, []
        try:
            while running.poll() is None:
                watch.look()
                modes |= {path.stat().st_mode & 0o777 for path in Path(rays).glob("llmperf-ray-*")}
                num_logs = max(num_logs, sum(1 for _ in Path(rays).rglob("*.log")))
                with contextlib.suppress(FileNotFoundError):  # removed at the end of the run
                    with_secret += files_with_secret(Path(rays))
                time.sleep(0.5)
        finally:
            running.terminate()
            said, told = running.communicate()
        assert running.returncode == 0, told
        assert num_logs, "Ray's logs were looked at"
        assert with_secret == []
        assert modes == {0o700}, "other users could rename Ray's sockets and logs"
        assert list(Path(rays).glob("llmperf-ray-*")) == []
    assert {"gcs_server", "raylet"} <= set().union(*watch.addresses.values()), "they were seen"
    assert set(watch.addresses) <= LOOPBACK, watch.addresses
    assert watch.modes == {"gcs_server": "token", "raylet": "token"}
    assert not (tmp_path / "home" / ".ray").exists(), "Ray's own token file is readable to others"
    for text in (said, told, watch.arguments, watch.inherited):
        assert SECRET not in text
        assert quote(SECRET, safe="") not in text
    assert (tmp_path / "data" / "run.json").exists()
    assert files_with_secret(tmp_path) == []


@pytest.fixture
def own_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of ours."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    ray = require("ray", "cluster")
    with own_ray(ray, include_dashboard=False, num_cpus=1):
        yield ray.get_runtime_context().gcs_address
    assert os.environ["RAY_AUTH_MODE"] == "disabled", "as it was"
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "says",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}],
)
def test_a_stranger_of_this_host_is_refused(own_address: str, says: dict[str, str]) -> None:
    theirs = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, own_address],
        capture_output=True, text=True, timeout=100, check=False,
        env={**theirs, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **says},
    )  # fmt: skip
    assert done.returncode != 0
    assert "inside" not in done.stdout

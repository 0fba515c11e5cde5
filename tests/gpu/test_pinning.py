"""Each actor times its own card: Ray's GPU id, NVML and OpenCL agree, and the load is where they say.

One GPU shows that the chain holds; several show that it tells cards apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.ray.pinning import bare_uuid
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import KERNELS, run_llmperf
from workers.device.nvidia.nvml import NvmlAbsent, all_compute_pids, open_gpu, uuid_of_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

BUSY = """
import select, sys
from cluster.ray.pinning import device_of_slot
from workers.discovery.opening import open_session
from workers.device.interface import DeviceRef
ref = device_of_slot("auto", [sys.argv[1]])
assert isinstance(ref, DeviceRef), ref
with open_session(ref) as session:
    session.spin_up(500)
    print(session.device.device_uuid, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        session.spin_up(50)
"""


@pytest.fixture(scope="module")
def uuids() -> list[str]:
    """Of all GPUs, in NVML's order."""
    cards = all_compute_pids()
    if isinstance(cards, NvmlAbsent) or not cards:
        pytest.skip(f"no NVIDIA GPU: {cards}")
    found = [uuid_of_gpu(str(index)) for index in range(len(cards))]
    return [bare_uuid(uuid) for uuid in found if isinstance(uuid, str)]


@contextmanager
def busy_actor(gpu_id: str, *, masked: bool) -> Iterator[str]:
    """Load the card that a slot with this GPU id chooses, as Ray masks it or without any mask; yields its UUID."""
    mask = {"CUDA_VISIBLE_DEVICES": gpu_id} if masked else {}
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **mask}
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, gpu_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield bare_uuid(process.stdout.readline().strip())
        finally:
            process.stdin.close()
            process.wait(30)


def busy_shares(uuids: list[str]) -> dict[str, float]:
    """Return what NVML says of all cards."""
    shares = {}
    for uuid in uuids:
        gpu = open_gpu(uuid)
        assert not isinstance(gpu, NvmlAbsent), gpu
        with gpu:
            shares[uuid] = gpu.read(time.monotonic()).busy_share or 0.0
    return shares


@pytest.mark.parametrize("masked", [True, False])
def test_the_load_is_on_the_card_that_ray_gave(uuids: list[str], masked: bool) -> None:
    for index, uuid in enumerate(uuids):
        with busy_actor(str(index), masked=masked) as chosen:
            assert chosen == uuid
            time.sleep(1.5)
            shares = busy_shares(uuids)
        assert shares[uuid] > 0.5, shares
        assert all(share < 0.2 for other, share in shares.items() if other != uuid), shares


def test_all_cards_at_once(uuids: list[str], tmp_path: Path) -> None:
    done = run_llmperf(
        "collect", "--corpus", KERNELS, "--out", tmp_path / "data", "--cluster", "--set", "ledger.claim_ahead=4",
        "--set", "limits.work=off", timeout_s=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    devices = {
        row["device_id"]: bare_uuid(row["device_uuid"])
        for row in open_dataset(tmp_path / "data").devices().to_pylist()
    }
    rows = open_dataset(tmp_path / "data").samples(["worker_id", "device_id"]).to_pylist()
    used = {row["worker_id"]: devices[row["device_id"]] for row in rows}
    assert len(used) == len(set(used.values())) == len(uuids), done.stderr
    for path in (tmp_path / "data" / "events").glob("*.jsonl"):
        line = json.loads(path.read_text().splitlines()[0])
        uuid = uuid_of_gpu(line["gpu_ids"])
        assert isinstance(uuid, str), uuid
        assert used[line["worker_id"]] == bare_uuid(uuid)

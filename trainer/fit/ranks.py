"""The processes of a fit (ranks) and their small collectives.

Owns the process group of torch. DeepSpeed exchanges gradients and weights (``engine.py``). A single
process is a group of one and opens no port.
"""

from __future__ import annotations

import atexit
import errno
import ipaddress
import logging
import os
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from trainer.errors import BadInput, PeerLost

_logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=30)
"""Timeout of collectives: long, because writing and hashing a checkpoint of 2.7 billion weights
takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A process group and the place of this process in it.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of processes.
        local_rank: number of this process on its host, from 0.
        device: the device of this process.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes the logs and the checkpoint's manifest."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.sum((0.0,))

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's ``value`` (small, picklable) on all ranks."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the ``value`` (small, picklable) of each rank, on all ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of the ranks' ``values`` in float64, bit-identical on all ranks."""
        if self.world_size == 1:
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        sums: list[float] = total.tolist()
        return sums


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Turn the failure of a collective into PeerLost.

    Gloo raises a plain RuntimeError if another process of the group is gone. Such an error is
    recognised by the module that raised it. Other RuntimeErrors pass through unchanged.

    Raises:
        PeerLost: A collective failed: another process of the group has ended.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_of_the_group(error):
            raise
        _logger.debug("a collective failed", exc_info=error)
        raise PeerLost(
            "another process of this fit has ended (its own message says why): the last checkpoint "
            "stays; run the same command again to resume from it"
        ) from error


def _is_of_the_group(error: RuntimeError) -> bool:
    if isinstance(error, dist.DistError):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")).startswith("torch.distributed")


def join_ranks(device: str = "auto") -> Ranks:
    """Join the group that torchrun's environment variables describe, or form a group of one.

    A process joins once, and leaves the group when it ends.

    Args:
        device: ``cpu``, ``cuda`` (the GPU of the local rank), or ``auto``.

    Raises:
        BadInput: The device is a GPU, and this local rank has no GPU.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = _device(device, local_rank)
    if not dist.is_initialized():
        _join(place)
    return Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        device=place,
    )


def _device(name: str, local_rank: int) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise BadInput(
            f"this process needs GPU {local_rank}, but {torch.cuda.device_count()} are visible: "
            "start as many processes as there are GPUs, or train on the CPU"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _join(device: torch.device) -> None:
    # Small collectives use gloo also with GPUs, so that they never wait for a kernel.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=_TIMEOUT)
    else:
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = meeting_point(rank, num_ranks)
        if store is None:
            dist.init_process_group(backend, timeout=_TIMEOUT)
        else:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=num_ranks, timeout=_TIMEOUT
            )
    atexit.register(_leave)


def meeting_point(rank: int, num_ranks: int) -> Store | None:
    """Return a store for the rendezvous that listens on ``MASTER_ADDR`` only.

    The store that torch makes by default listens on all interfaces without a password. An attacker
    who writes a rank's address into it receives the ranks' data and sends data that is unpickled.

    Args:
        rank: rank of this process; rank 0 listens.
        num_ranks: size of the group; rank 0 waits for all of them.

    Returns:
        None, on all ranks alike, if torch's default must be used: ``torchrun`` has made the store,
        or ``MASTER_ADDR`` is a host name, which may resolve differently on each host.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or not _is_ip(address):
        return None
    listener: int | None = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, port), family=family).detach()
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The address is a translated one (NAT): only torch's default listener is reachable.
    return TCPStore(address, port, num_ranks, rank == 0, _TIMEOUT, master_listen_fd=listener)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()

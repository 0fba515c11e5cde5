"""Where the processes of a training find each other: who can reach it."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from tests.support.listening import listening
from trainer.fit.ranks import meeting_point


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, as ``MASTER_PORT``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    monkeypatch.setenv("MASTER_PORT", str(number))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return number


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_it_listens_at_the_first_ranks_address_alone(
    port: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own listens on all interfaces."""
    if address == "::1" and not _has_ipv6():
        pytest.skip("this host has no IPv6")
    monkeypatch.setenv("MASTER_ADDR", address)
    store = meeting_point(0, 1)
    assert store is not None
    store.set("a", "b")
    assert store.get("a") == b"b"
    assert not {"0.0.0.0", "::"} & set(listening(os.getpid()))
    with socket.create_connection((address, port), timeout=5):
        pass


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.usefixtures("port")
def test_a_name_is_left_to_torch(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert meeting_point(rank, 2) is None


@pytest.mark.usefixtures("port")
def test_behind_a_translated_address_it_listens_as_torch_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other ranks make a store of this kind, too: the first may not take another."""

    def refuse(*_arguments: object, **_options: object) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store = meeting_point(0, 1)
    assert store is not None
    store.set("a", "b")
    assert store.get("a") == b"b"


@pytest.mark.usefixtures("port")
def test_torchruns_store_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert meeting_point(0, 2) is None


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False

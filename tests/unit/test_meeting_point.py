"""Where the processes of a training find each other: who can reach it."""

from __future__ import annotations

import os
import socket

import pytest

from tests.listening import listening
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


@pytest.mark.parametrize("address", ["localhost", "203.0.113.7"])
@pytest.mark.usefixtures("port")
def test_a_name_or_a_translated_address_is_left_to_torch(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    assert meeting_point(0, 2) is None


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

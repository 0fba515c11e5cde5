"""A ledger behind TLS: a real server with a certificate of a CA that the test makes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.ledger.redis import redis_locations
from cluster.ledger.redis_connection import LedgerUrlError, connect
from cluster.ledger.redis_errors import LedgerRefusedError
from cluster.ledger.redis_runs import runs_on
from llmperf_common.ledger.protocol import Committed, Holder, LedgerAwayError
from llmperf_common.store.manifests.run import RunRecord
from tests.support.contracts.ledger_contract import claim, shard_pair
from tests.support.servers.redis_server import RedisServer, find_server, free_port

HOLDER = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True)
class TlsServer:
    """A server that takes TLS at one port, and plain connections at another."""

    plain: RedisServer
    tls_port: int
    ca: Path

    def url(self, options: str = "", *, host: str = "localhost") -> str:
        """Return how ``--ledger`` names it."""
        return f"rediss://{host}:{self.tls_port}/0{options}"


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _certificates(folder: Path) -> None:
    """Write ``ca.pem`` and, signed by it, ``server.pem`` of localhost."""
    folder.mkdir()
    ca = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(
        folder, "req", "-x509", *KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=CA of a test",
        "-addext", ca[0], "-addext", ca[1],
    )  # fmt: skip
    _openssl(
        folder, "req", *KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=ledger"
    )
    names = "subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n"
    (folder / "names").write_text(names, encoding="utf-8")
    _openssl(
        folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", "names", "-out", "server.pem",
    )  # fmt: skip


def _takes_tls(program: str) -> bool:
    """Whether a server was built with TLS: one that was not dies of the option, one that was of its empty certificate."""
    told = subprocess.run(
        [program, "--port", "0", "--tls-port", str(free_port())],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return "tls-cert-file" in told.stdout + told.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    if not _takes_tls(find_server()):
        pytest.skip(f"NOT TESTED: rediss://, for {find_server()} was built without TLS")
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    _certificates(folder)
    port = free_port()
    options = (
        "--tls-port", str(port), "--tls-cert-file", str(folder / "server.pem"), "--tls-key-file",
        str(folder / "server.key"), "--tls-ca-cert-file", str(folder / "ca.pem"), "--tls-auth-clients", "no",
    )  # fmt: skip
    plain = RedisServer(folder.parent / "data", options=options)
    yield TlsServer(plain=plain, tls_port=port, ca=folder / "ca.pem")
    plain.kill()


def test_a_ledger_behind_tls(server: TlsServer) -> None:
    run = RunRecord(
        plan_hash="p", corpus_sha256="", config_hash="", config={}, device_classes=(), num_tasks=6, created_at="",
    )  # fmt: skip
    ledger_location = redis_locations(server.url(f"?ssl_ca_certs={server.ca}"), "/data")(run)
    ledger = ledger_location.create(epoch=1, plan_hash="p", shards=[], done=[])
    assert ledger.commit(shards=shard_pair("1"), leases=claim(ledger, HOLDER)) == Committed()
    ledger.close()
    with server.plain.client() as client:
        fields = {field.decode() for field in client.hkeys("llmperf:{p}:e000001:shards")}
    assert fields == {
        "",
        *(entry.name for entry in shard_pair("1")),
    }  # the nameless field keeps an empty hash in being


def test_runs_are_seen_through_tls(server: TlsServer) -> None:
    server.plain.flush()
    assert runs_on(server.url(f"?ssl_ca_certs={server.ca}")) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "certificate verify failed"),
        ("?ssl_ca_certs=/no/such/ca.pem", "No such file"),
        ("?ssl_ca_certs={folder}/names", "certificate or crl|X509|PEM|SSL"),
    ],
)
def test_a_certificate_that_nobody_vouches_for(server: TlsServer, options: str, why: str) -> None:
    url = server.url(options.format(folder=server.ca.parent))
    where = f"localhost:{server.tls_port}"
    with pytest.raises(LedgerRefusedError, match=rf"{where}: .*({why}).*: .*\?ssl_ca_certs=FILE"):
        connect(url)


def test_another_name_than_the_certificates(server: TlsServer) -> None:
    """Asked for by name, since clients before redis-py 6 do not look at it unasked."""
    options = f"?ssl_ca_certs={server.ca}&ssl_check_hostname=true"
    connect(server.url(options)).close()
    with pytest.raises(LedgerRefusedError, match=r"127\.0\.0\.1.*: .*for that host name"):
        connect(server.url(options, host="127.0.0.1"))


def test_a_misspelt_option_and_a_plain_url(server: TlsServer) -> None:
    with pytest.raises(LedgerUrlError, match="ssl_ca_cert"):
        connect(server.url(f"?ssl_ca_cert={server.ca}"))
    with pytest.raises(LedgerAwayError, match=f"cannot be reached: .*{server.tls_port}"):
        connect(f"redis://127.0.0.1:{server.tls_port}/0")

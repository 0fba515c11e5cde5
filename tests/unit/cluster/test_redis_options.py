"""The options of a ledger's URL: which are known, and what each may be."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import redis  # noqa: TID251

from cluster.ledger.redis_connection import LedgerUrlError, connect
from cluster.ledger.redis_options import OPTIONS, option_problem

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "collect-on-a-cluster.md"
GOOD = (
    "db=1", "username=u&password=p", "socket_timeout=2.5", "socket_connect_timeout=1", "socket_keepalive=True",
    "health_check_interval=30", "client_name=llmperf-1", "max_connections=8", "protocol=3", "retry_on_timeout=no",
    "ssl_ca_certs=/a/ca.pem&ssl_ca_path=/a", "ssl_certfile=/a&ssl_keyfile=/b&ssl_password=x", "ssl_cert_reqs=none",
    "ssl_check_hostname=false", "ssl_min_version=771", "ssl_min_version=772",
    "ssl_ciphers=ECDHE%2BAESGCM:!aNULL", "ssl_ciphers=ECDHE-RSA-AES256-GCM-SHA384",
)  # fmt: skip
BAD = (
    "ssl_cert_reqs=require", "protocol=9", "protocol=abc", "socket_timeout=1e400", "socket_connect_timeout=1e30",
    "socket_timeout=nan", "socket_timeout=0", "socket_timeout=-1", "socket_connect_timeout=3601", "db=-1", "db=x",
    "db=" + "9" * 5000, "max_connections=0", "client_name=a%20b", "client_name=a%0ab", "health_check_interval=x",
    "ssl_check_hostname=maybe", "ssl_ca_certs=", "db=1&db=x", "ssl_ca_certs=a%00b", "protocol=%d9%a2",
    "ssl_min_version=TLSv1.2", "ssl_min_version=770", "ssl_min_version=", "ssl_ciphers=", "ssl_ciphers=a%00b",
    "ssl_ciphers=NONE-OF-THEM", "ssl_ciphers=%c3%a9",
)  # fmt: skip
UNKNOWN = (
    "cache_config=SECRET&protocol=3", "maint_notifications_config=SECRET", "username=x&credential_provider=SECRET",
    "retry=SECRET", "encoding=SECRET", "parser_class=SECRET", "redis_connect_func=SECRET", "socket_type=SECRET",
    "command_packer=SECRET", "event_dispatcher=SECRET", "decode_responses=SECRET", "url=redis://u:SECRET", "SECRET",
    "ssl_ca_cert=SECRET", "ssl_ca_data=SECRET", "connection_class=SECRET", "path=/SECRET", "host=SECRET",
)  # fmt: skip


@pytest.mark.parametrize("query", GOOD)
def test_known_options(query: str) -> None:
    assert option_problem(f"rediss://u:SECRET@head:6379/0?{query}") is None


@pytest.mark.parametrize("query", BAD)
def test_values_that_an_option_may_not_have(query: str) -> None:
    with pytest.raises(LedgerUrlError, match=f"{query.partition('=')[0]} must be ") as told:
        connect(f"rediss://u:SECRET@127.0.0.1:1/0?{query}")
    assert "SECRET" not in str(told.value)


@pytest.mark.parametrize("query", UNKNOWN)
def test_options_that_no_ledger_has(query: str) -> None:
    with pytest.raises(LedgerUrlError, match=r"is not supported: .* ssl_ca_certs, ") as told:
        connect(f"redis://u:PASSWORD@127.0.0.1:1/0?{query}")
    assert "SECRET" not in str(told.value)
    assert "PASSWORD" not in str(told.value)


def test_what_a_client_may_be_called() -> None:
    told = option_problem("redis://head:6379/0?client_name=a%20b")
    assert told == "client_name must be 1 to 100 printable ASCII characters without spaces"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_client_library_takes_the_least_version(version: ssl.TLSVersion) -> None:
    options = f"ssl_min_version={version.value}&ssl_ciphers=ECDHE%2BAESGCM"
    with redis.Redis.from_url(f"rediss://127.0.0.1:1/0?{options}") as client:
        given = client.connection_pool.connection_kwargs
    context = ssl.create_default_context()
    context.minimum_version = given["ssl_min_version"]
    assert context.minimum_version is version
    assert given["ssl_ciphers"] == "ECDHE+AESGCM"


def test_a_url_that_cannot_be_split() -> None:
    with pytest.raises(LedgerUrlError, match="invalid URL"):
        connect("redis://[:::::]:1/0?db=1")


def test_options_of_tls_need_tls() -> None:
    with pytest.raises(LedgerUrlError, match="ssl_ca_certs needs rediss://"):
        connect("redis://127.0.0.1:1/0?ssl_ca_certs=/a")


def test_an_option_of_the_client_is_named() -> None:
    with pytest.raises(LedgerUrlError, match="the option ssl_ca_data is not supported"):
        connect("rediss://127.0.0.1:1/0?ssl_ca_data=x")


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("password=Hunter&Two=x", "2 of 2"),
        ("password=Hunter&Two", "2 of 2"),
        ("password=Hunter&Two&db=1", "2 of 3"),
        ("Hunter&Two", "1 of 2"),
        ("password=Hunter%26&Tw%6F=x", "2 of 2"),
    ],
)
def test_a_part_of_a_password_is_not_shown_as_a_name(query: str, place: str) -> None:
    with pytest.raises(LedgerUrlError, match=rf"option {place} .*%26.* is not supported") as told:
        connect(f"redis://127.0.0.1:1/0?{query}")
    assert "Two" not in str(told.value)
    assert "Hunter" not in str(told.value)


def test_the_page_lists_the_options() -> None:
    text = HOW_TO.read_text()
    for name in OPTIONS:
        assert f"`{name}`" in text

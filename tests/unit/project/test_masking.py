"""No password in what is shown: whatever it is, wherever it stands in a URL, however a message writes it."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf.cli import console
from llmperf.exits import CommandError, Exit, run_guarded, show_bug
from llmperf_common.masking import holds_secret, masked, masked_values, public_url, secrets_of
from llmperf_common.store.files.location import open_filesystem

ROOT = Path(__file__).resolve().parents[3]
SCHEMES = ("redis", "rediss", "unix", "http", "https", "s3")
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=24
).filter(lambda text: len(text.strip("/?#@&=:; ")) >= 6)
"""Long enough that no part of a message is like it by chance."""
FORMS = (
    str,
    lambda text: quote(text, safe=""),
    lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    quote_plus,
)


@st.composite
def urls(draw: st.DrawFn, *, encoded: bool) -> tuple[str, str]:
    """A secret and a URL that has it, in any place; as it should be written, or as it is."""
    secret = draw(TEXT)
    form = draw(st.sampled_from(FORMS[1:] if encoded else FORMS))
    written = form(secret)
    scheme = draw(st.sampled_from(SCHEMES))
    cased = "".join(draw(st.sampled_from((c, c.upper()))) for c in scheme)
    place = draw(
        st.sampled_from(
            (
                "{0}://user:{1}@head:6379/0",
                "{0}://:{1}@head:6379/0",
                "{0}://{1}@head:6379/0",
                "{0}://head:6379/0?password={1}",
                "{0}://head:6379/0?db=1&password={1}",
                "{0}://head:6379/0?PassWord={1}&db=1",
                "{0}://user:other@head:6379/0?password={1}",
                "{0}://head:6379?endpoint_override=http://user:{1}@minio:9000",
                "{0}://head:6379/0#{1}",
                "{0}://user:{1}@/run/redis.sock?db=0",
            )
        )
    )
    return secret, place.format(cased, written)


def shown_in(secret: str, text: str) -> bool:
    """Whether a secret is in a text, in any case and in any of the encodings."""
    lowered = text.lower()
    return any(
        form.lower() in lowered
        for form in (
            *(form(secret) for form in FORMS),
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
        )
    )


@given(urls(encoded=False))
def test_a_public_url_has_no_secret(made: tuple[str, str]) -> None:
    secret, url = made
    assert not shown_in(secret, public_url(url))
    assert public_url(public_url(url)) in (public_url(url), "***"), "masking twice changes nothing"


@given(urls(encoded=True))
def test_a_message_has_no_secret(made: tuple[str, str]) -> None:
    secret, url = made
    for message in (
        f"cannot reach {url}: no route",
        f"--ledger {url!r}: wrong",
        json.dumps({"url": url}, ensure_ascii=False),
    ):
        assert not shown_in(secret, masked(message)), message


@given(urls(encoded=False), st.data())
def test_what_a_library_says_of_a_url_has_no_secret(
    made: tuple[str, str], data: st.DataObject
) -> None:
    """A server repeats the arguments of a command, a parser the part that it could not read: in no URL any more."""
    secret, url = made
    form = data.draw(st.sampled_from((*FORMS, repr, json.dumps, str.swapcase)))
    said = f"unknown command 'AUTH', with args beginning with: {form(secret)} in {url}"
    left = masked(said, url)
    if not public_url(url).endswith("***"):  # else its parts are masked one by one
        assert not shown_in(secret, left)
    assert secret not in left


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://default:secret@head:6379/0", "redis://head:6379/0"),
        ("Redis://:secret@head:6379/0", "Redis://head:6379/0"),
        ("redis://head:6379/0?password=secret", "redis://head:6379/0"),
        ("redis://head/0?password=se@cret", "redis://***"),  # what is after @ is no host
        ("redis://:se/cret@head:6379/0", "redis://***"),
        ("redis://:se?cret@head:6379/0", "redis://***"),
        ("redis://:se#cret@head:6379/0", "redis://***"),
        ("redis://:se cret@head:6379/0", "redis://head:6379/0"),
        (
            "redis://:secret\N{FULLWIDTH COMMERCIAL AT}head:6379",
            "redis://***",
        ),  # NFKC makes it an @
        ("redis://:secret", "redis://***"),
        ("unix://user:secret@/run/redis.sock?db=0", "unix:///run/redis.sock"),
        ("rediss://[fe80::1%eth0]:6379/0", "rediss://[fe80::1%eth0]:6379/0"),
        ("http://key:secret@minio.example:9000/", "http://minio.example:9000/"),
        ("s3://bucket/runs/first", "s3://bucket/runs/first"),
        ("sqlite", "sqlite"),
        ("head:6379", "head:6379"),
        ("user:secret@head", "***"),
        ("", ""),
    ],
)
def test_what_is_shown(url: str, shown: str) -> None:
    assert public_url(url) == shown
    assert holds_secret(url) == ("://" in url and url != shown)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("https:/u:secret@h/x", "https:/h/x"),
        ("https:/u:secret@h/x?token=secret", "https:/h/x"),
        ("https:/:secret@h", "https:/h"),
        ("ftp:/u:secret@h", "ftp:/h"),
        ("s3:/KEY:sec/ret@bucket/x", "s3:/***"),
        ("https:/u:sec@secret@h/x", "https:/h/x"),
        ("/home/me/https:/u:secret@h/x", "/home/me/https:/h/x"),
        ("https:/me@x.org:secret@h/x", "https:/h/x"),
        ("HTTPS:/secret@h/x", "HTTPS:/h/x"),
        ("https:/h/x?token=secret", "https:/h/x"),
        ("https:/h:80/x;y", "https:/h:80/x;y"),
        ("s3:/a@b?c", "s3:/a@b?c"),
        ("C:/a@b", "C:/a@b"),
        ("C:/a:b@c", "C:/a:b@c"),
        ("dir:/x@y", "dir:/x@y"),
        ("dir:/x/y:z@w", "dir:/x/y:z@w"),
        ("replay:/home/a@b/x.json", "replay:/home/a@b/x.json"),
        ("/a:/b:c", "/a:/b:c"),
    ],
)
def test_a_url_that_was_taken_for_a_path(path: str, shown: str) -> None:
    for message in ("{0}: no such folder", "--data {0!r} is none", "give ({0}), or {0}."):
        assert masked(message.format(path)) == message.format(shown)


@given(urls(encoded=True))
def test_a_message_about_a_path_has_no_password(made: tuple[str, str]) -> None:
    secret, url = made
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in ("unix", "s3") or rest.startswith("user:"):
        assert not shown_in(secret, masked(f"{scheme}:/{rest}: no such file"))


def test_options_that_are_no_secrets_may_be_named() -> None:
    url = "rediss://head/0?ssl_ca_certs=/shared/ca.pem&socket_timeout=5"
    assert secrets_of(url) == frozenset()
    assert masked("no such file: /shared/ca.pem", url) == "no such file: /shared/ca.pem"


@pytest.mark.parametrize(
    "hint",
    [
        "redis://[USER:PASSWORD@]HOST:PORT[/DB]",
        "write redis://USER:PASSWORD@HOST:PORT/0.",
        "--ledger redis://HOST:PORT",
        "a file on this host: rediss://…/0?ssl_ca_certs=FILE",
        "another database of the server, redis://…/1",
        "LLMPERF_S3_ENDPOINT (http://HOST:PORT)",
    ],
)
def test_hints_stay(hint: str) -> None:
    assert masked(hint) == hint


def hints() -> Iterator[str]:
    """Every text with a URL in our own sources, docstrings left out."""
    for package in ("llmperf", "llmperf_common", "workers", "cluster", "trainer"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if ":/" not in source:
                continue
            nodes = list(ast.walk(ast.parse(source)))
            prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.Constant) and id(node) not in prose:
                    yield str(node.value)


def test_no_message_of_ours_is_changed() -> None:
    assert [hint for hint in hints() if masked(hint) != hint] == []


def test_a_document_is_masked_in_depth() -> None:
    document = {"a": ["http://u:secret@h/x", 1, None], "b": {"c": "redis://h?password=secret"}}
    assert masked_values(document) == {"a": ["http://h/x", 1, None], "b": {"c": "redis://h"}}


def test_the_ways_out_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CommandError(Exit.USAGE, "no redis://user:secret@head:1/0 there")

    console.say("at http://user:secret@minio:9000/x")
    with pytest.raises(SystemExit):
        run_guarded(fail)
    try:
        raise RuntimeError("a bug at rediss://:secret@head/0")
    except RuntimeError as error:
        show_bug(type(error), error, error.__traceback__)
    console.set_loudness(console.Loudness.VERBOSE)
    try:
        try:
            raise ValueError("redis://:secret@head")
        except ValueError:
            logging.getLogger("workers").exception("of redis://:secret@head/0")
    finally:
        console.set_loudness(console.Loudness.NORMAL)
    told = capsys.readouterr().err
    assert "secret" not in told
    assert "no redis://head:1/0 there" in told
    assert "ValueError: redis://head" in told
    assert "RuntimeError: a bug at rediss://head/0" in told


@pytest.mark.parametrize(
    "location",
    [
        "s3://KEY:secret@bucket/runs",
        "S3://KEY:secret@bucket/runs",
        "s3://bucket/runs?endpoint_override=http%3A%2F%2Fuser:secret%40minio",
        "s3://bucket/runs?secret_key=secret",
        "https://user:secret@minio.example/bucket",
    ],
)
def test_a_location_with_credentials_is_refused(location: str) -> None:
    """It would be in the names of folders, in `status`, and in the heartbeats of a Redis server."""
    with pytest.raises(Exception, match=r"write s3://bucket/prefix") as raised:
        open_filesystem(location)
    assert "secret" not in str(raised.value).replace("AWS_SECRET", "")

"""An S3 store that lists without an end, or not what it has stored: each command ends, with little memory."""

from __future__ import annotations

import http.server
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlparse

import pytest

from llmperf_common.store.files import s3_listing, s3_lock
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.files.s3 import S3Filesystem
from tests.support.servers.s3_server import CREDENTIALS, open_at

Keys = Callable[[int], list[str]]
_HEAD = "<IsTruncated>{more}</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
_TIME = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"


class Store:
    """Lists what ``keys`` says of a page's number, below the prefix that is asked for; writes are forgotten."""

    def __init__(self) -> None:
        self.keys: Keys = lambda _: []
        self.num_pages: int | None = 1
        """None: without an end."""
        self.num_tokens: int | None = None
        """None: each page has a token of its own."""
        self.num_listings = 0
        self.writes: list[float] = []
        self._counts = itertools.count()
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for each answer

            def log_message(self, *_: object) -> None:
                """Silence."""

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                store.writes.append(time.monotonic())
                self._answer(200, b"")

            def do_DELETE(self) -> None:
                self._answer(204, b"")

            def do_GET(self) -> None:
                asked = parse_qs(urlparse(self.path).query)
                self._answer(200, store.page(asked["prefix"][0], "continuation-token" in asked))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def page(self, prefix: str, is_continued: bool) -> bytes:
        """Return the next page."""
        if not is_continued:
            self._counts = itertools.count()
        self.num_listings += 1
        number = next(self._counts)
        token = number % self.num_tokens if self.num_tokens else number
        more = self.num_pages is None or number + 1 < self.num_pages
        head = _HEAD.format(more=str(more).lower(), token=f"t{token}")
        items = [
            f"<CommonPrefixes><Prefix>{prefix}{key}</Prefix></CommonPrefixes>"
            if key.endswith("/")
            else f"<Contents><Key>{prefix}{key}</Key>{_TIME}</Contents>"
            for key in self.keys(number)
        ]
        return f"<ListBucketResult>{head}{''.join(items)}</ListBucketResult>".encode()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    one = Store()
    yield one
    one.close()


@pytest.fixture
def fs(store: Store) -> S3Filesystem:
    return open_at(store.endpoint, "s3://bucket/data")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_tokens", [None, 3])
@pytest.mark.parametrize(
    "keys", [lambda _: [], lambda number: ["b", "a"][number % 2 :], lambda _: ["f/", "a"]]
)
@pytest.mark.parametrize("call", ["names", "folders"])
def test_pages_that_list_nothing_new_do_not_go_on(
    store: Store, fs: S3Filesystem, keys: Keys, call: str, num_tokens: int | None
) -> None:
    store.num_pages, store.keys, store.num_tokens = None, keys, num_tokens
    with pytest.raises(
        StoreError, match=rf"{store.endpoint} lists .*data/x without an end.*LLMPERF_S3_ENDPOINT"
    ):
        getattr(fs, call)("x")
    assert store.num_listings <= s3_listing.MAX_PAGES_WITHOUT_NEWS + 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("call", ["names", "folders"])
def test_a_folder_has_only_so_many_objects(
    store: Store, fs: S3Filesystem, monkeypatch: pytest.MonkeyPatch, call: str, ending: str
) -> None:
    monkeypatch.setattr(s3_listing, "MAX_ENTRIES", 1000)
    store.keys = lambda number: [f"{number}-{i}{ending}" for i in range(100)]
    store.num_pages = 10
    assert len(fs.names("x") + fs.folders("x")) == 1000
    store.num_pages, store.num_listings = None, 0
    with pytest.raises(StoreError, match=rf"{store.endpoint} lists .*data/x with more than 1,000 "):
        getattr(fs, call)("x")
    assert store.num_listings == 11


def test_a_key_is_no_longer_than_s3_allows(store: Store, fs: S3Filesystem) -> None:
    store.keys = lambda _: ["x" * 1010]
    assert fs.names("x") == ["x" * 1010]
    store.keys = lambda _: ["x" * 1030]
    with pytest.raises(StoreError, match=r"as no S3 store does.*more than 1024 bytes"):
        fs.names("x")


def test_pages_without_order_and_with_gaps_are_read(store: Store, fs: S3Filesystem) -> None:
    """Directory buckets of Amazon list in no order, and pages may be empty."""
    store.keys = lambda number: [] if number % 50 else [f"{(7 * number) % 11}-{number}", "f/"]
    store.num_pages = 151
    assert len(fs.names("x")) == 4
    assert fs.folders("x") == ["f"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("is_exclusive", [True, False])
def test_a_store_that_does_not_list_a_new_claim_has_no_locks(
    store: Store,
    fs: S3Filesystem,
    monkeypatch: pytest.MonkeyPatch,
    is_exclusive: bool,
    wait: bool,
) -> None:
    monkeypatch.setattr(s3_lock, "_UNLISTED_S", 1.5)
    began_s = time.monotonic()
    with (
        pytest.raises(
            StoreError,
            match=rf"{store.endpoint} lists no object that it has just stored \(s3://bucket/data/l/",
        ),
        fs.lock("l", exclusive=is_exclusive, wait=wait),
    ):
        pass
    assert 1.5 <= time.monotonic() - began_s < 10
    assert len(store.writes) <= 8, "there is a pause before each further write"
    assert not any(thread.name == "lock-heartbeat" for thread in threading.enumerate())


def test_a_claim_that_others_removed_is_made_again(
    store: Store, fs: S3Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_lock.secrets, "token_hex", lambda _: "0f")
    store.keys = lambda _: ["exclusive-0f"] if store.num_listings > 2 else []
    with fs.lock("l", exclusive=True, wait=False) as is_held:
        assert is_held
    assert len(store.writes) == 3


@pytest.mark.parametrize("name", ["x\udcff", "\ud83d/x", "kernels/\udcff.parquet"])
def test_a_name_that_is_no_text_is_refused_before_a_request(
    store: Store, fs: S3Filesystem, name: str
) -> None:
    for use in (
        lambda: fs.read_bytes(name),
        lambda: fs.put_if_absent(name, b""),
        lambda: fs.replace(name, b""),
        lambda: fs.remove(name),
        lambda: fs.sizes([name]),
        lambda: fs.move(name, "x"),
        lambda: fs.move("x", name),
        lambda: fs.names(name),
        lambda: fs.folders(name),
    ):
        with pytest.raises(StoreError, match=r"\\u.*cannot be the name of an object") as refused:
            use()
        assert "http" not in str(refused.value)
    assert (store.num_listings, store.writes) == (0, [])


def test_a_location_that_is_no_text_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"\\udcff.* cannot be the name of an object"):
        open_at(store.endpoint, "s3://bucket/da\udcffta")

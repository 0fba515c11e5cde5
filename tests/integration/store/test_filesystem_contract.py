"""The contract of ``Filesystem`` on a folder, on moto, and on the store of ``LLMPERF_S3_ENDPOINT``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem
from llmperf_common.store.files.s3 import ENDPOINT_VARIABLE
from tests.support.contracts.filesystem_contract import Again, FilesystemContract
from tests.support.servers.s3_server import CREDENTIALS, S3Server, new_prefix, open_at


@pytest.fixture
def fs(again: Again) -> Filesystem:
    return again()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


class TestPosix(FilesystemContract):
    num_many = 50

    @pytest.fixture
    def again(self, tmp_path: Path) -> Again:
        return lambda: PosixFilesystem(tmp_path / "data")


class TestS3(FilesystemContract):
    num_many = 120

    @pytest.fixture(autouse=True)
    def short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "50")

    @pytest.fixture
    def again(self, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Again:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        location = new_prefix(server.endpoint)
        return lambda: open_at(server.endpoint, location)


@pytest.mark.slow
def test_a_listing_of_more_than_a_page_as_long_as_amazons(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    location = new_prefix(server.endpoint)
    FilesystemContract().test_many_names(open_at(server.endpoint, location))


if ENDPOINT_VARIABLE in os.environ:

    class TestNamedS3(FilesystemContract):
        """Needs credentials; makes the bucket ``LLMPERF_S3_BUCKET`` (default: llmperf-tests)."""

        @pytest.fixture
        def again(self) -> Again:
            endpoint = os.environ[ENDPOINT_VARIABLE]
            location = new_prefix(endpoint, os.environ.get("LLMPERF_S3_BUCKET", "llmperf-tests"))
            return lambda: open_at(endpoint, location)

else:

    @pytest.mark.skip(reason=f"NOT TESTED: a real S3 store ({ENDPOINT_VARIABLE} is not set)")
    def test_the_contract_on_a_named_store() -> None:
        """Counted, so that moto is not taken for the real store."""

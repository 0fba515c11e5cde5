"""An S3 server for tests: moto over real HTTP, on a free port, with faults on request.

Requests are carried out one at a time, because moto checks a name and writes it in two steps.
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import boto3  # noqa: TID251
from botocore.config import Config  # noqa: TID251
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from llmperf_common.store.files.s3 import ENDPOINT_VARIABLE, S3Filesystem
from llmperf_common.store.files.s3_lock import LockTiming

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",  # moto accepts any value
    "AWS_EC2_METADATA_DISABLED": "true",
}
Start = Callable[..., Any]


@dataclass
class Fault:
    """A fault of the next ``times`` requests of ``method`` whose path ends in ``suffix``.

    Attributes:
        before: HTTP status of the answer; the request is not carried out.
        after: HTTP status of the answer after the request was carried out.
        code: code of the error in the answer.
    """

    method: str
    suffix: str = ""
    before: int | None = None
    after: int | None = None
    code: str = "InternalError"
    times: int = 1


@dataclass
class Faults:
    """The planned faults of the server."""

    planned: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False
    requests: list[str] = field(default_factory=list)

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault of a request, or None."""
        for fault in self.planned:
            if fault.times and fault.method == method and path.endswith(fault.suffix):
                fault.times -= 1
                return fault
        return None


class FaultyApp:
    """Moto behind a lock, with faults."""

    def __init__(self, faults: Faults) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._faults = faults
        self._one_at_a_time = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Answer one request."""
        with self._one_at_a_time:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self._faults.requests.append(f"{method} {path}")
            if self._faults.ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            fault = self._faults.take(method, path)
            if fault is not None and fault.before is not None:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                return _error(start_response, fault.before, fault.code)
            if fault is None:
                return list(self._moto(environ, start_response))
            list(self._moto(environ, lambda *_: lambda _: None))
            assert fault.after is not None
            return _error(start_response, fault.after, fault.code)


def _error(start_response: Start, status: int, code: str) -> list[bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planted</Message></Error>".encode()
    start_response(
        f"{status} planted",
        [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))],
    )
    return [body]


class S3Server:
    """A server in a thread; ``close`` ends it."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._server = make_server("127.0.0.1", 0, FaultyApp(self.faults), threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables by which a process finds the server."""
        return {ENDPOINT_VARIABLE: self.endpoint, **CREDENTIALS}

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def new_prefix(endpoint: str, bucket: str = "llmperf-tests") -> str:
    """Return an empty prefix of a bucket; create the bucket if it does not exist."""
    _make_bucket(endpoint, bucket)
    return f"s3://{bucket}/{secrets.token_hex(6)}/data"


@functools.cache
def _make_bucket(endpoint: str, bucket: str) -> None:
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=os.environ.get("AWS_REGION", "us-east-1"),
        config=Config(s3={"addressing_style": "path"}),
    )
    if bucket not in {one["Name"] for one in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)


def open_at(
    endpoint: str, location: str, *, heartbeat_s: float = 20.0, stale_s: float = 90.0
) -> S3Filesystem:
    """Open a location of a test's server."""
    timing = LockTiming(heartbeat_s=heartbeat_s, stale_s=stale_s)
    return S3Filesystem(location, endpoint=endpoint, lock_timing=timing)

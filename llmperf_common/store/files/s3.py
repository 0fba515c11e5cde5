"""Datasets in an S3 bucket, or in any store that speaks S3 and honours conditional PUT.

Owns requests, retries and the messages of failures. No other module imports boto3. ``s3_lock.py``
makes locks of objects; ``create_once.py`` refuses unsuitable stores.

The server decides whether a name is new: one PUT with ``If-None-Match: *``. If the answer is lost,
the PUT may have happened; then boto3's retry gets 412 because of our own object. So each write puts
a random mark into the object's metadata. If the object has our mark after a 412, it is our own. A
comparison of bytes would not do: two processes may write the same bytes, and only one is the first.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import random
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from llmperf_common.extras import require
from llmperf_common.masking import holds_secret, masked, public_url
from llmperf_common.store.files import s3_answers
from llmperf_common.store.files.filesystem import (
    AccessDeniedError,
    StoreError,
    StoreLostError,
    max_bytes_of,
)
from llmperf_common.store.files.location import SCHEME, check_object_name, split_s3
from llmperf_common.store.files.s3_listing import UnendingListingError, read_listing
from llmperf_common.store.files.s3_lock import Listing, LockClaims, LockTiming

ENDPOINT_VARIABLE = "LLMPERF_S3_ENDPOINT"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")  # which boto3 reads by itself
_REQUEST_ATTEMPTS = 5
"""Number of attempts of one request. boto3 makes them with growing pauses, about 10 s in all."""
_CONFLICT_ATTEMPTS = 10
_READ_ATTEMPTS = 3
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
_REQUESTS_AT_ONCE = 8  # requests are independent; boto3 keeps 16 connections
_MARK = "llmperf-write"
_PART_BYTES = 2**20


class _UnansweredError(StoreError):
    """The store did not answer, so the request may or may not have been carried out."""


class S3Filesystem:
    """A prefix of a bucket as a ``Filesystem``.

    Args:
        location: ``s3://bucket`` or ``s3://bucket/prefix``.
        endpoint: URL of a store other than Amazon's; None: boto3's own configuration decides.
        lock_timing: when a lock's holder counts as dead.

    Raises:
        StoreError: The location or the endpoint is invalid.
        MissingExtra: boto3 is not installed.
    """

    def __init__(
        self, location: str, *, endpoint: str | None = None, lock_timing: LockTiming | None = None
    ) -> None:
        self._bucket, self._prefix = split_s3(location)
        self._endpoint = endpoint
        self._boto3 = require("boto3.session", "s3")
        self._errors = require("botocore.exceptions", "s3")
        self._nonsense = (
            *s3_answers.NONSENSE,
            require("botocore.parsers", "s3").ResponseParserError,
        )
        self._client = self._connect()
        self._claims = LockClaims(self, lock_timing or LockTiming())
        self._pinned: tuple[str, bytes] | None = None

    def describe(self, name: str = "") -> str:
        """Return the address of ``name``."""
        return f"{SCHEME}{self._bucket}/{self._key(name)}".rstrip("/")

    def read_bytes(self, name: str) -> bytes:
        """Return the whole object. Raises FileNotFoundError, StoreError if it cannot be read."""
        for attempt in range(_READ_ATTEMPTS):
            try:
                answer = self._request("get_object", name, Key=self._key(name))
                return self._whole(answer, name)
            except self._errors.BotoCoreError as error:  # boto3 does not retry to read the body
                if attempt == _READ_ATTEMPTS - 1:
                    raise self._unanswered(error, name) from self._cause(error)
        raise AssertionError("the last attempt returns or raises")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name`` with ``data``; if it exists, change nothing and return False.

        Raises:
            StoreError: The request failed. If it took effect, a later call returns False.
        """
        mark = secrets.token_hex(16)
        was_repeated = False
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                self._put(name, data, IfNoneMatch="*", Metadata={_MARK: mark})
                return True
            except _UnansweredError:
                if self._mark_of(name) == mark:
                    return True
                raise  # the unanswered request may still succeed, so False could be wrong
            except self._errors.ClientError as error:
                metadata = error.response["ResponseMetadata"]
                was_repeated = was_repeated or metadata.get("RetryAttempts", 0) > 0
                if metadata["HTTPStatusCode"] == 412:
                    return was_repeated and self._mark_of(name) == mark
            # 409: another write of this name was under way, so ours was dropped. Try again.
            time.sleep(random.uniform(0.2, 1.0) * min(0.05 * 2**attempt, 1.0))  # noqa: S311
        raise StoreError(
            f"cannot create {self.describe(name)}: another write was under way at each of "
            f"{_CONFLICT_ATTEMPTS} attempts (409): stop it, then run the same command again"
        )

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite ``name``."""
        self._put(name, data)

    def pin(self, name: str) -> None:
        """Pin this object: its content must stay the same (a bucket has no inode to compare)."""
        try:
            self._pinned = (name, self.read_bytes(name))
        except FileNotFoundError:
            raise self._lost(f"it has no {name}") from None

    def check_place(self) -> None:
        """Raise StoreLostError if the pinned object is gone or has other content."""
        if self._pinned is None:
            return
        name, content = self._pinned
        try:
            is_same = self.read_bytes(name) == content
        except FileNotFoundError:
            raise self._lost(f"{name} is gone") from None
        if not is_same:
            raise self._lost(f"its {name} has changed")

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Return the length of each of these objects in bytes; None for a missing object."""
        if not names:
            return {}
        with ThreadPoolExecutor(min(len(names), _REQUESTS_AT_ONCE), "sizes") as pool:
            return dict(zip(names, pool.map(self._size, names), strict=True))

    def same_files(self, names: Collection[str], kept: Collection[str]) -> frozenset[str]:
        """Return nothing: an object has one name."""
        del names, kept
        return frozenset()

    def move(self, name: str, new_name: str) -> None:
        """Rename an object; no error if it is gone. Raises StoreError as ``remove`` does."""
        self._claims.check()
        check_object_name(name)
        source = {"Bucket": self._bucket, "Key": self._key(name)}
        with contextlib.suppress(FileNotFoundError):
            self._request("copy_object", new_name, Key=self._key(new_name), CopySource=source)
            self.remove(name)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the objects directly under ``folder``."""
        return sorted(self.listing(folder).modified)

    def folders(self, folder: str = "") -> list[str]:
        """Return the sorted names of the folders directly in ``folder`` that contain objects."""
        return self._read_listing(folder)[1]

    def remove(self, name: str) -> None:
        """Delete ``name``; no error if it is gone.

        Raises:
            StoreError: A lock held here was not renewed in time; another process may hold it.
        """
        self._claims.check()
        self.delete(name)

    def lock(self, name: str, *, exclusive: bool, wait: bool) -> AbstractContextManager[bool]:
        """Hold an advisory lock made of objects; ``s3_lock.py`` says what the lock guarantees."""
        return self._claims.hold(name, exclusive=exclusive, wait=wait)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock ``name``; nothing is created."""
        return self._claims.is_held(name)

    def delete(self, name: str) -> None:
        """Delete ``name`` regardless of locks."""
        with contextlib.suppress(FileNotFoundError):  # some stores answer 404 if it is missing
            self._request("delete_object", name, Key=self._key(name))

    def listing(self, folder: str) -> Listing:
        """Return the objects directly under ``folder`` with their times, and the server's time."""
        return self._read_listing(folder)[0]

    def _connect(self) -> Any:
        config = require("botocore.config", "s3").Config(
            retries={"mode": "standard", "total_max_attempts": _REQUEST_ATTEMPTS},
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            max_pool_connections=16,
            # MD5 protects uploads, and shards are read back. Many stores lack newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if self._endpoint else None,
        )
        try:
            session = self._boto3.Session()
            region = session.region_name or ("us-east-1" if self._endpoint else None)
            return session.client(
                "s3", endpoint_url=self._endpoint, region_name=region, config=config
            )
        except (ValueError, self._errors.BotoCoreError) as error:
            raise StoreError(
                f"cannot open {self.describe()}: {self._told(error)}: check {ENDPOINT_VARIABLE} "
                "(http://HOST:PORT) and the AWS configuration"
            ) from self._cause(error)

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)

    def _folder_key(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _put(self, name: str, data: bytes, **conditions: Any) -> None:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        self._request(
            "put_object", name, Key=self._key(name), Body=data, ContentMD5=digest, **conditions
        )

    def _whole(self, answer: Any, name: str) -> bytes:
        """Return the body of an answer; raise StoreError if it exceeds the limit of such a file."""
        most = max_bytes_of(name)
        data = bytearray()
        if answer.get("ContentLength", 0) <= most:
            # Read until an empty part comes: only then botocore checks the announced length.
            while part := answer["Body"].read(_PART_BYTES):
                data += part
                if len(data) > most:
                    break
            else:
                return bytes(data)
        answer["Body"].close()
        raise StoreError(f"{self.describe(name)} has more than {most} bytes: it is not read")

    def _size(self, name: str) -> int | None:
        answer = self._head(name)
        with self._understood("head_object", name):
            return None if answer is None else s3_answers.size_of(answer)

    def _head(self, name: str) -> Any:
        try:
            return self._request("head_object", name, Key=self._key(name))
        except FileNotFoundError:
            return None

    def _lost(self, why: str) -> StoreLostError:
        return StoreLostError(
            f"{self.describe()} is no longer the run's dataset ({why}): it was removed or "
            "replaced. LLMPerf writes nothing more there: restore it, or name another location"
        )

    def _mark_of(self, name: str) -> str | None:
        answer = self._head(name)
        return None if answer is None else answer.get("Metadata", {}).get(_MARK)

    def _read_listing(self, folder: str) -> tuple[Listing, list[str]]:
        ask = functools.partial(self._request, "list_objects_v2", folder)
        try:
            with self._understood("list_objects_v2", folder):
                return read_listing(ask, self._folder_key(folder))
        except UnendingListingError as error:
            raise StoreError(
                f"{self.address()} lists {self.describe(folder)} {error}: check "
                f"{ENDPOINT_VARIABLE}, or use another store"
            ) from None

    def _request(self, operation: str, name: str, **arguments: Any) -> Any:
        """Make one request; raise LLMPerf's errors, but botocore's own for a condition's 409, 412."""
        check_object_name(name)
        try:
            with self._understood(operation, name):
                return getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        except self._errors.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status in (409, 412) and "IfNoneMatch" in arguments:
                raise
            if status == 404 and code != "NoSuchBucket" and operation in s3_answers.OF_AN_OBJECT:
                raise FileNotFoundError(self.describe(name)) from None
            raise self._refusal(code, status, name) from error
        except (
            self._errors.NoCredentialsError,
            self._errors.PartialCredentialsError,
            self._errors.CredentialRetrievalError,
            self._errors.TokenRetrievalError,
            self._errors.UnauthorizedSSOTokenError,
        ) as error:
            raise AccessDeniedError(
                f"no credentials for {self.describe(name)} ({self._told(error)}): set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use a machine role"
            ) from self._cause(error)
        except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
            raise self._unanswered(error, name) from self._cause(error)
        except self._errors.BotoCoreError as error:
            raise StoreError(
                f"cannot use {self.describe(name)}: {self._told(error)}: check the location, "
                f"{ENDPOINT_VARIABLE} and the AWS configuration"
            ) from self._cause(error)

    @contextlib.contextmanager
    def _understood(self, operation: str, name: str) -> Iterator[None]:
        """Raise StoreError if the answer to a request makes no sense."""
        try:
            yield
        except self._errors.BotoCoreError:
            raise  # some are also ValueErrors
        except self._nonsense as error:
            raise StoreError(
                f"{self.address()} answered {operation} of {self.describe(name)} as no S3 store does "
                f"({type(error).__name__}: {self._told(error)[:300]}): check {ENDPOINT_VARIABLE}"
            ) from self._cause(error)

    def _refusal(self, code: str, status: int, name: str) -> StoreError:
        where = self.describe(name)
        if code == "NoSuchBucket":
            return StoreError(
                f"{where}: there is no bucket {self._bucket} at {self.address()}: create it first"
            )
        if status in (401, 403) or code in s3_answers.ACCESS_CODES:
            return AccessDeniedError(
                f"access to {where} is denied ({code}): check the credentials, and that they allow "
                f"s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject on {self._bucket}"
            )
        if status == 404:
            return StoreError(
                f"{self.address()} does not know {where} (404 {code}): check {ENDPOINT_VARIABLE}, "
                "which must be the address of an S3 store"
            )
        return StoreError(
            f"the store refused a request for {where} ({status} {code}) after at most "
            f"{_REQUEST_ATTEMPTS} attempts: nothing committed is lost; run the same command again"
        )

    def _unanswered(self, error: Exception, name: str) -> StoreError:
        return _UnansweredError(
            f"cannot reach {self.address()} for {self.describe(name)} ({type(error).__name__}): "
            f"nothing committed is lost; check the network and {ENDPOINT_VARIABLE}, then run the "
            "same command again"
        )

    def address(self) -> str:
        """Return the store's address for messages, without secrets."""
        return public_url(self._endpoint or str(self._client.meta.endpoint_url))

    def _cause(self, error: Exception) -> Exception | None:
        """Return the cause to chain to an error; None if it may quote an endpoint's password."""
        return None if any(map(holds_secret, self._endpoints())) else error

    def _told(self, error: Exception) -> str:
        """Return a library's message without the secrets in an endpoint's URL."""
        return masked(str(error), *self._endpoints())

    def _endpoints(self) -> list[str]:
        named = (self._endpoint, *(os.environ.get(name) for name in _ENDPOINT_VARIABLES))
        return [one for one in named if one]


def open_s3(location: str) -> S3Filesystem:
    """Open ``location`` at the endpoint that the environment names, without any request.

    Raises:
        StoreError: The location or the endpoint is invalid.
        MissingExtra: boto3 is not installed.
    """
    return S3Filesystem(location, endpoint=os.environ.get(ENDPOINT_VARIABLE) or None)

"""Read the parts of an S3 store's answers that LLMPerf needs.

A proxy or another kind of server may answer, and botocore passes on most of what it says. Here each
field is checked, and an answer that makes no sense raises one of ``NONSENSE``. ``s3.py`` turns it
into an error that names the endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

NONSENSE = (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError)
"""What botocore's parsers and the functions below raise if they cannot make sense of an answer."""
OF_AN_OBJECT = frozenset({"get_object", "head_object", "copy_object", "delete_object"})
"""Requests about one object, which may be missing. A 404 to another request: no S3 store."""
ACCESS_CODES = frozenset(
    {
        "AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch",
        "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AllAccessDisabled",
        "AccountProblem",
    }
)  # fmt: skip
"""Codes of errors that other credentials, or other rights of theirs, can end."""
_MAX_KEY_BYTES = 1024
"""S3's own limit. It bounds the memory that a listing takes."""
Page = Mapping[str, Any]


def objects_of(page: Page, start: str) -> Iterator[tuple[str, datetime]]:
    """Yield the objects of a page of a listing with their times.

    ``start`` is the folder's key, with which all keys begin.
    """
    for item in page.get("Contents", ()):
        name = _below(start, item["Key"])
        if name:  # consoles create an object of the folder's name for empty folders
            yield name, _time(item["LastModified"])


def folders_of(page: Page, start: str) -> Iterator[str]:
    """Yield the names of the folders of a page."""
    for item in page.get("CommonPrefixes", ()):
        yield _below(start, item["Prefix"]).rstrip("/")


def date_of(page: Page) -> datetime | None:
    """Return the server's time when it sent a page, if it says so."""
    date = page["ResponseMetadata"]["HTTPHeaders"].get("date")
    return _time(parsedate_to_datetime(date)) if date else None


def size_of(answer: Page) -> int:
    """Return the length of an object in bytes."""
    size = answer["ContentLength"]
    if type(size) is not int or size < 0:
        raise ValueError(f"the length of an object is {ascii(size)[:40]}")
    return size


def _below(start: str, key: str) -> str:
    if not key.startswith(start) or not key:
        raise ValueError(f"a listing of {start!a} has the key {ascii(key)[:200]}")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise ValueError(f"a listing of {start!a} has a key of more than {_MAX_KEY_BYTES} bytes")
    return key[len(start) :]


def _time(time: datetime) -> datetime:
    """Return a time with a zone: a date in mail format may lack one, and then means UTC."""
    if not isinstance(time, datetime):
        raise TypeError(f"{ascii(time)[:40]} is not a time")
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

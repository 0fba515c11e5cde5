"""Read the parts of an S3 store's answers that LLMPerf needs.

A proxy or another kind of server may answer, and botocore passes on most of what it says. Here each
field is checked, and an answer that makes no sense raises one of ``NONSENSE``. ``s3.py`` turns it
into an error that names the endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from llmperf_common.store.files.s3_lock import Listing

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
Page = Mapping[str, Any]


def listing_of(pages: Sequence[Page], start: str) -> Listing:
    """Return the objects of a listing; ``start`` is the folder's key, with which all keys begin."""
    modified: dict[str, datetime] = {}
    for item in (item for page in pages for item in page.get("Contents", ())):
        name = _below(start, item["Key"])
        if name:  # consoles create an object of the folder's name for empty folders
            modified[name] = _time(item["LastModified"])
    date = pages[-1]["ResponseMetadata"]["HTTPHeaders"].get("date")
    return Listing(now=_time(parsedate_to_datetime(date)) if date else None, modified=modified)


def folders_of(pages: Iterable[Page], start: str) -> list[str]:
    """Return the sorted names of the folders of a listing."""
    items = (item for page in pages for item in page.get("CommonPrefixes", ()))
    return sorted(_below(start, item["Prefix"]).rstrip("/") for item in items)


def size_of(answer: Page) -> int:
    """Return the length of an object in bytes."""
    size = answer["ContentLength"]
    if type(size) is not int or size < 0:
        raise ValueError(f"the length of an object is {ascii(size)[:40]}")
    return size


def _below(start: str, key: str) -> str:
    if not key.startswith(start) or not key:
        raise ValueError(f"a listing of {start!a} has the key {ascii(key)[:200]}")
    return key[len(start) :]


def _time(time: datetime) -> datetime:
    """Return a time with a zone: a date in mail format may lack one, and then means UTC."""
    if not isinstance(time, datetime):
        raise TypeError(f"{ascii(time)[:40]} is not a time")
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

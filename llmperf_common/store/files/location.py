"""A dataset's location as a user writes it: a local folder, or ``s3://bucket/prefix``.

Owns the conversion of that text to a ``Filesystem``, and the name of a dataset's state folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from llmperf_common.files.visible import shortened
from llmperf_common.ids import sha256_hex
from llmperf_common.masking import public_url
from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem, StoreError

Location = str | Path
SCHEME = "s3://"
_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Half of a character. Python reads a byte of a path that is not UTF-8 as one of \\udc80 to
\\udcff, so these are not refused."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def open_filesystem(location: Location) -> Filesystem:
    """Return the file system of a dataset, without reading or writing anything.

    Raises:
        StoreError: The location has an unknown scheme.
        MissingExtra: It is an S3 location and boto3 is not installed.
    """
    folder = local_folder(location)
    if folder is not None:
        return PosixFilesystem(folder)
    from llmperf_common.store.files.s3 import open_s3  # noqa: PLC0415

    return open_s3(str(location))


def local_folder(location: Location) -> Path | None:
    """Return the folder that ``location`` names; None for an S3 location.

    Raises:
        StoreError: The location has an unknown scheme, or is a text that no path can be.
        TypeError: It is neither a text nor a path.

    >>> local_folder("runs/first"), local_folder("s3://bucket/first")
    (PosixPath('runs/first'), None)
    """
    text = os.fspath(location)
    if not isinstance(text, str):
        raise TypeError(f"a location is a text or a path, not {type(location).__name__}")
    if "\0" in text or _LONE_SURROGATE.search(text):
        raise StoreError(f"{shortened(ascii(text))} cannot be a path: name a dataset folder")
    if text.startswith(SCHEME):
        return None
    match = _SCHEME.match(text)
    if match is not None:
        text = public_url(text) if "://" in text else text
        raise StoreError(
            f"{text!r} is neither a folder nor an S3 location: write s3://bucket/prefix, a path, "
            f"or ./{text} for a folder of that name"
        )
    return Path(text)


def split_s3(location: str) -> tuple[str, str]:
    """Return the bucket and the prefix of ``s3://bucket/prefix``. Raises StoreError.

    >>> split_s3("s3://bucket/first"), split_s3("s3://bucket")
    (('bucket', 'first'), ('bucket', ''))
    """
    check_object_name(location)
    bucket, _, prefix = location.removeprefix(SCHEME).partition("/")
    if "@" in bucket or ("?" in location and "=" in location.partition("?")[2]):
        raise StoreError(
            f"{public_url(location)!r} contains a user, a password or options: write s3://bucket/"
            "prefix alone; credentials belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or "
            f"AWS_PROFILE, and another store's address belongs in LLMPERF_S3_ENDPOINT"
        )
    if not location.startswith(SCHEME) or not bucket or "//" in f"/{prefix}":
        raise StoreError(f"{location!r} is not an S3 location: write it as s3://bucket/prefix")
    return bucket, prefix.rstrip("/")


def check_object_name(name: str) -> None:
    """Raise StoreError if no object can have this name, because it is not text (UTF-8)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StoreError(
            f"{shortened(ascii(name))} cannot be the name of an object in a bucket, because it is "
            "not text (UTF-8): rename it"
        ) from None


def state_name(location: str) -> str:
    """Return the name of this machine's folder for an S3 dataset's ledger and event logs.

    The same prefix at another endpoint is a different dataset.
    """
    place = location.rstrip("/")
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", place)[:80]
    endpoint = os.environ.get("LLMPERF_S3_ENDPOINT", "")
    return f"{readable}-{sha256_hex(f'{endpoint} {place}'.encode())[:8]}"

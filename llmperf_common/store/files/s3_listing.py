"""Read a folder's listing in an S3 store page by page, with an end even if the store sets none.

Owns the limits of a listing. A store that always announces a further page would keep a command busy
for ever, and fill its memory. Pages may be empty, and in no order (Amazon's directory buckets), so
only pages that list nothing new are counted, and all entries of a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from llmperf_common.store.files import s3_answers
from llmperf_common.store.files.s3_lock import Listing

MAX_ENTRIES = 2_000_000
"""Maximum number of objects and folders directly in one folder. A manifest lists at most about a
million shards."""
MAX_PAGES_WITHOUT_NEWS = 100
"""Number of consecutive pages that may list nothing new. Stores with many deleted objects give some
empty pages."""


class UnendingListingError(Exception):
    """A listing goes on without an end, or for too long; the message says which."""


def read_listing(ask: Callable[..., Any], start: str) -> tuple[Listing, list[str]]:
    """Return the objects directly in a folder, and the sorted names of the folders there.

    Args:
        ask: requests one page, with the arguments of ``list_objects_v2``.
        start: the folder's key, with which all keys begin.

    Raises:
        UnendingListingError: The listing has no end, or too many entries.
    """
    objects: dict[str, datetime] = {}
    folders: set[str] = set()
    arguments = {"Prefix": start, "Delimiter": "/"}
    num_without_news = 0
    while True:
        page, num_known = ask(**arguments), len(objects) + len(folders)
        objects.update(s3_answers.objects_of(page, start))
        folders.update(s3_answers.folders_of(page, start))
        num_entries = len(objects) + len(folders)
        if num_entries > MAX_ENTRIES:
            raise UnendingListingError(f"with more than {MAX_ENTRIES:,} objects and folders")
        if not page.get("IsTruncated"):
            return Listing(now=s3_answers.date_of(page), modified=objects), sorted(folders)
        num_without_news = num_without_news + 1 if num_entries == num_known else 0
        token = page.get("NextContinuationToken")
        is_same = not token or token == arguments.get("ContinuationToken")
        if is_same or num_without_news > MAX_PAGES_WITHOUT_NEWS:
            raise UnendingListingError("without an end, which a sound S3 store does not do")
        arguments["ContinuationToken"] = token

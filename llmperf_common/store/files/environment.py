"""What processes of other nodes get of this one's environment: where the dataset's store is, and nothing that opens it.

Owns the list. It goes to Ray as the ``runtime_env`` of actors, which Ray's dashboard shows to every user of it:
credentials are each node's own, as boto3 finds them there.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmperf_common.masking import holds_secret
from llmperf_common.store.files.s3 import ENDPOINT_VARIABLE

STORE_SETTINGS = (
    ENDPOINT_VARIABLE,
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
)
"""Passed on. A list of what may be, not of what must not: a new secret of boto3's stays here by itself."""


def store_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the dataset's store that are set in ``environment``; a URL with a password is left out.

    >>> store_settings({"LLMPERF_S3_ENDPOINT": "http://minio:9000", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": ""})
    {'LLMPERF_S3_ENDPOINT': 'http://minio:9000'}
    """
    found = {name: environment.get(name, "") for name in STORE_SETTINGS}
    return {name: value for name, value in found.items() if value and not holds_secret(value)}

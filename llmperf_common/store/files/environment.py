"""Select environment variables for other nodes: the address of the store, but no credentials.

Owns the list of variables. They go to Ray as the ``runtime_env`` of actors, which Ray's dashboard
shows to all its users. Each node keeps its own credentials where boto3 finds them.
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
"""The variables that are passed on. It is a list of allowed names, so that no secret of a newer
boto3 is passed on by accident."""


def store_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of the store that are set; a URL with a password is left out.

    >>> here = {"LLMPERF_S3_ENDPOINT": "http://minio:9000", "AWS_SECRET_ACCESS_KEY": "x"}
    >>> store_settings({**here, "AWS_REGION": ""})
    {'LLMPERF_S3_ENDPOINT': 'http://minio:9000'}
    """
    found = {name: environment.get(name, "") for name in STORE_SETTINGS}
    return {name: value for name, value in found.items() if value and not holds_secret(value)}

"""A Ray cluster of this process alone: on this host's loopback addresses, closed to other users by a token of its own.

Owns what a local ``--cluster`` opens to others: nothing. Ray is given as an argument; its doors are in the packages that
use it. A cluster that a user has started listens, and asks for a token, as its ``ray start`` said.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

_logger = logging.getLogger(__name__)

_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's only way to a loopback node address: without it 127.0.0.1, too, becomes the address of the host's network, and
Ray's servers listen on all interfaces. Its processes inherit it."""
OWN_ADDRESSES: Final = ("", "local")
"""What ``RAY_ADDRESS`` says where no other cluster is meant."""
_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def own_ray(ray: Any, **options: Any) -> Iterator[None]:
    """Start a cluster for the length of a ``with``.

    Who wants to look at it with Ray's own tools sets ``RAY_AUTH_TOKEN`` before. Otherwise its token is a new one,
    known to its processes only: Ray's default is a file in the home folder that other users may read.

    Args:
        ray: the module.
        options: of ``ray.init``.

    Raises:
        RuntimeError: Ray cannot be started, or does not stay on loopback.
        ValueError, ConnectionError: As ``ray.init``.
    """
    if not _has_tokens(ray):
        _logger.warning(
            "Ray %s knows no tokens: meanwhile other users of this host can run programs as you; use Ray 2.52 or newer",
            ray.__version__,
        )
    token = {} if any(map(os.environ.get, _TOKEN_VARIABLES)) else _new_token()
    with _environment(ray, {**_LOOPBACK, "RAY_AUTH_MODE": "token", **token}):
        ray.init(address="local", log_to_driver=False, logging_level=logging.WARNING, **options)
        try:
            address = ray.util.get_node_ip_address()
            if not ipaddress.ip_address(address).is_loopback:
                raise RuntimeError(
                    f"Ray {ray.__version__} listens on {address} and not on this host's loopback alone: use Ray 2.60, or start a "
                    "cluster with `ray start` and name it in RAY_ADDRESS"
                )
            yield
        finally:
            ray.shutdown()


def _new_token() -> dict[str, str]:
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def _environment(ray: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Hold environment variables, and let Ray, which has read them when it was imported, read them again."""
    before = {name: os.environ.get(name) for name in values}
    constants = ray._private.ray_constants
    could_cluster = constants.ENABLE_RAY_CLUSTER
    os.environ.update(values)
    constants.ENABLE_RAY_CLUSTER = False
    _read_again(ray)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        constants.ENABLE_RAY_CLUSTER = could_cluster
        _read_again(ray)


def _read_again(ray: Any) -> None:
    if _has_tokens(ray):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _has_tokens(ray: Any) -> bool:
    return hasattr(ray._raylet, "AuthenticationTokenLoader")  # from Ray 2.52 on

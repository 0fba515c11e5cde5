"""A private Ray cluster of this process: it listens on loopback only and requires a secret token.

Owns the rule that a local ``--cluster`` is not reachable over the network. The Ray module is an
argument, because only the packages that use Ray import it. A cluster that a user has started keeps
the addresses and the token that were given to ``ray start``.
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
"""Ray accepts a loopback node address only with this variable, which its processes inherit. Without
it Ray replaces even 127.0.0.1 by the host's network address and listens on all interfaces."""
OWN_ADDRESSES: Final = ("", "local")
"""Values of ``RAY_ADDRESS`` that name no existing cluster."""
_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def own_ray(ray: Any, **options: Any) -> Iterator[None]:
    """Start a private Ray cluster and stop it at the end of the ``with`` block.

    To inspect the cluster with Ray's own tools, set ``RAY_AUTH_TOKEN`` first. Otherwise the token
    is random and known to the cluster's processes only. Ray's default would be a file in the home
    folder, which other users may be able to read.

    Args:
        ray: the imported Ray module.
        options: keyword arguments of ``ray.init``.

    Raises:
        RuntimeError: Ray cannot be started, or does not stay on loopback.
        ValueError, ConnectionError: Same as ``ray.init``.
    """
    if not _has_tokens(ray):
        _logger.warning(
            "Ray %s does not support tokens: while this cluster runs, other users of this host "
            "can run programs as you; use Ray 2.52 or newer",
            ray.__version__,
        )
    token = {} if any(map(os.environ.get, _TOKEN_VARIABLES)) else _new_token()
    with _environment(ray, {**_LOOPBACK, "RAY_AUTH_MODE": "token", **token}):
        ray.init(address="local", log_to_driver=False, logging_level=logging.WARNING, **options)
        try:
            address = ray.util.get_node_ip_address()
            if not ipaddress.ip_address(address).is_loopback:
                raise RuntimeError(
                    f"Ray {ray.__version__} listens on {address}, not only on this host's "
                    "loopback: "
                    "use Ray 2.60, or start a cluster with `ray start` and name it in RAY_ADDRESS"
                )
            yield
        finally:
            ray.shutdown()


def _new_token() -> dict[str, str]:
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def _environment(ray: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a ``with`` block; the imported Ray module reads them again."""
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

"""A session of Ray: the user's cluster, which this process joins, or a private one of this process.

A private cluster listens on loopback only and requires a secret token. Owns the rule that it is not
reachable over the network or by other users of the host: Ray's logs and sockets lie in a folder that
only this user can enter. A cluster that a user has started keeps the addresses and the token that
were given to ``ray start``. In neither do Ray's processes import from the working directory. The Ray
module is an argument, because only the packages that use Ray import it.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from llmperf_common.installation import path_of_packages

_logger = logging.getLogger(__name__)

_JOB_VARIABLE: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets it for the driver of a job that ``ray job submit`` has started."""
_PATH_VARIABLES: Final = (
    "RAY_AUTH_TOKEN_PATH",
    "RAY_TLS_CA_CERT",
    "RAY_TLS_SERVER_CERT",
    "RAY_TLS_SERVER_KEY",
)
"""Environment variables with paths of files that Ray opens."""
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray accepts a loopback node address only with this variable, which its processes inherit. Without
it Ray replaces even 127.0.0.1 by the host's network address and listens on all interfaces."""
OWN_ADDRESSES: Final = ("", "local")
"""Values of ``RAY_ADDRESS`` that name no existing cluster."""
_MOST_CHARACTERS: Final = 18
"""Maximum number of characters of the path of the folder for temporary files. The paths of Ray's
sockets below it are up to 89 characters longer, and Linux allows 107 in all."""
_PREFIX: Final = "llmperf-ray-"
_LOCK: Final = "in-use"
"""Name of a file in the folder. The process that uses the folder locks this file while it lives."""
_STARTING_S: Final = 60
"""Seconds within which a process locks its new folder. An older folder without a lock is
abandoned."""
_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def joined_ray(ray: Any, address: str) -> Iterator[None]:
    """Join the Ray cluster at an address, and leave it at the end of the ``with`` block.

    Raises:
        RuntimeError, ValueError, OSError, ray.exceptions.RayError: Same as ``ray.init``.
    """
    # Ray gives a submitted job's processes a working directory with the files of the job. If this
    # directory has LLMPerf itself, which may not be installed, the actors must import from it.
    is_job = _JOB_VARIABLE in os.environ
    is_ours = os.path.samefile(os.curdir, Path(__file__).resolve().parents[1])
    with contextlib.nullcontext() if is_job or is_ours else _inside("/"):
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _inside(folder: str | Path) -> Iterator[None]:
    """Work in a folder without files of others: Ray's processes import from the one of ``ray.init``.

    Relative paths for Ray in the environment become absolute and stay so.
    """
    for name in _PATH_VARIABLES:
        if os.environ.get(name):
            os.environ[name] = str(Path(os.environ[name]).absolute())
    with contextlib.chdir(folder):
        yield


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
        ValueError, OSError, ray.exceptions.RayError: Same as ``ray.init``.
    """
    if not _has_tokens(ray):
        _logger.warning(
            "Ray %s does not support tokens: while this cluster runs, other users of this host "
            "can run programs as you; use Ray 2.52 or newer",
            ray.__version__,
        )
    token = {} if any(map(os.environ.get, _TOKEN_VARIABLES)) else _new_token()
    with (
        _private_folder() as folder,
        _environment(ray, {**_LOOPBACK, "RAY_AUTH_MODE": "token", **token, **path_of_packages()}),
    ):
        with _inside(Path(folder).parent):
            ray.init(
                address="local",
                log_to_driver=False,
                logging_level=logging.WARNING,
                _temp_dir=folder,
                **options,
            )
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


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """Yield a new folder that only this user can enter; it stays after an error, for its logs.

    It is not in Ray's default folder, ``/tmp/ray``, where every user can rename files.
    ``RAY_TMPDIR`` names another place. Folders of processes that were killed are removed first.
    """
    wanted = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    root = wanted if len(wanted) <= _MOST_CHARACTERS else "/tmp"  # noqa: S108
    _remove_abandoned(Path(root))
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
    with Path(folder, _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it when this process ends
        try:
            yield f"{folder}/r"  # a folder inside ours, because Ray lets all users into its folder
        except Exception:
            Path(folder, _LOCK).unlink()  # so that no later run removes the folder
            _logger.warning("Ray's logs are kept in %s", folder)
            raise
        except BaseException:  # such as Ctrl-C
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    """Remove this user's folders whose process has ended without removing its folder."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            is_old = time.time() - found.st_mtime > _STARTING_S
            if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_old):
                continue
            with (folder / _LOCK).open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


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

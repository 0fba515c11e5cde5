"""Advisory locks for stores without locks: objects that their holders renew while they live.

Owns the objects' names, their renewal and the rule for dead holders. A lock is a folder with one
object for each claim, ``.run.lock/shared-0f3a…`` or ``.run.lock/exclusive-77b1…``. A process that
claims the lock writes its object and lists the folder. The claim is granted if no other live claim
conflicts with it. Of two conflicting claims the later one sees the earlier one, because listings
are consistent: a listing that begins after a PUT has returned shows the object.

Guarantee: two conflicting claims are not both granted while their holders reach the store every 90
s. The guarantee does not cover a holder that was suspended or cut off for longer. Such a holder
counts as dead by the server's clock (``LastModified`` against the ``Date`` of the listing), and may
resume beside the next holder. In that case:

- published data stays whole, because commits and manifests rest on epochs, tokens and
  create-if-absent;
- a sweep or compaction stops: ``S3Filesystem.remove`` refuses once the claim was not renewed for
  0.7 of those 90 s;
- a collector that was suspended between writing and committing a shard may commit it although a
  sweep has moved it away; ``dataset verify`` names this shard
  (``docs/decisions/0030-conditional-put-and-locks-of-objects.md``).

The object has the holder's process id, so processes of the same host, boot and container ignore a
dead holder's claim at once. For all other processes, and after the host has booted again, the claim
lasts until it runs out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from llmperf_common.ledger.holder import boot_clock_s, has_ended, this_process
from llmperf_common.ledger.protocol import Holder
from llmperf_common.store.files.filesystem import AccessDeniedError, StoreError
from llmperf_common.store.files.lock_holders import this_command

_log = logging.getLogger(__name__)
_EXCLUSIVE, _SHARED = "exclusive-", "shared-"
_POLL_S = 0.3
_SETTLE_S = 2.0
"""Seconds for which a claim is kept although it conflicts with others and its process does not wait
for the lock. In this time conflicting claims that were made at the same moment can withdraw."""
_RENEWED_SHARE = 0.7
_UNLISTED_S = 30.0
"""Seconds for which a store may fail to list a claim that it has stored, however often it is stored
again. Sound stores list it at once."""
_UNLISTED_TIMES = 3
"""Minimum number of times that it is not listed. A process that was stopped for a minute has missed
one listing, and others have removed its claim meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTiming:
    """The interval of a claim's renewals, and the time after which an unrenewed claim is dead."""

    heartbeat_s: float = 20.0
    stale_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A folder's objects and their times of writing; ``now`` is the server's time, or None."""

    now: datetime | None
    modified: dict[str, datetime]


class LockStore(Protocol):
    """The operations that locks need of a store."""

    def describe(self, name: str = "") -> str:
        """Return the full name for messages."""
        ...

    def address(self) -> str:
        """Return the store's address for messages."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Create or overwrite an object."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; no error if it is gone."""
        ...

    def listing(self, folder: str) -> Listing:
        """Return the objects of a folder."""
        ...


class LockClaims:
    """The claims of one process on one store."""

    def __init__(self, store: LockStore, timing: LockTiming) -> None:
        self._store = store
        self._timing = timing
        self._held: set[_Claim] = set()

    @contextlib.contextmanager
    def hold(self, name: str, *, exclusive: bool, wait: bool) -> Iterator[bool]:
        """Hold the lock ``name`` during a ``with`` block; the value says whether it was obtained.

        A user without write access learns at once whether the lock is free, and blocks no other
        process.
        """
        claim = _Claim(self._store, name, exclusive=exclusive, timing=self._timing)
        try:
            is_held = claim.acquire(wait=wait)
            if is_held:
                self._held.add(claim)
            yield is_held
        finally:
            self._held.discard(claim)
            claim.withdraw()

    def is_held(self, name: str) -> bool:
        """Whether a process holds the lock ``name`` now; creates no claim."""
        return _Claim(self._store, name, exclusive=True, timing=self._timing).has_rivals()

    def check(self) -> None:
        """Raise StoreError if another process may hold a lock that this process thinks it holds."""
        for claim in tuple(self._held):
            claim.check()


class _Claim:
    """One attempt to hold a lock; the name of its object is never used again."""

    def __init__(self, store: LockStore, lock: str, *, exclusive: bool, timing: LockTiming) -> None:
        self._store = store
        self._lock = lock
        self._is_exclusive = exclusive
        self._timing = timing
        self._name = (_EXCLUSIVE if exclusive else _SHARED) + secrets.token_hex(8)
        self._content = json.dumps(dataclasses.asdict(this_process()) | this_command()).encode()
        self._renewed_s = 0.0
        self._is_granted = False
        self._over = threading.Event()
        self._heart: threading.Thread | None = None
        self._holders: dict[str, Holder | None] = {}

    def acquire(self, *, wait: bool) -> bool:
        """Return whether the lock was obtained; with ``wait``, wait for it."""
        while True:
            try:
                self._place()
            except AccessDeniedError:
                if wait:
                    raise
                return not self._live_rivals(self._store.listing(self._lock))[0]
            if self._settle(wait=wait):
                self._is_granted = True
                return True
            self.withdraw()
            if not wait:
                return False
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))  # noqa: S311

    def has_rivals(self) -> bool:
        """Whether another live claim conflicts with this one."""
        return bool(self._live_rivals(self._store.listing(self._lock))[0])

    def withdraw(self) -> None:
        """Give up the claim, granted or not."""
        if self._heart is None:
            return
        self._over.set()
        self._heart.join()  # a renewal that is under way would create the object again
        self._heart = None
        try:
            self._store.delete(self._path(self._name))
        except StoreError as error:
            _log.warning(
                "cannot remove the lock %s, which expires by itself: %s",
                self._store.describe(self._lock),
                error,
            )

    def check(self) -> None:
        """Raise StoreError if this claim was not renewed and others may soon count it as dead."""
        silent_s = self._silent_s()
        if silent_s > self._longest_silence_s:
            raise StoreError(
                f"the lock {self._store.describe(self._lock)} could not be renewed for "
                f"{silent_s:.0f} s, so another process may hold it now. Nothing more is removed: "
                "run the same command again"
            )

    def _silent_s(self) -> float:
        return boot_clock_s() - self._renewed_s

    @property
    def _longest_silence_s(self) -> float:
        return _RENEWED_SHARE * self._timing.stale_s

    def _place(self) -> None:
        self._renew()
        self._over.clear()
        self._heart = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)
        self._heart.start()

    def _renew(self) -> None:
        asked_s = boot_clock_s()
        self._store.replace(self._path(self._name), self._content)
        self._renewed_s = asked_s

    def _beat(self) -> None:
        while not self._over.wait(self._timing.heartbeat_s):
            # A process that was suspended must not renew a lock that another one may hold by now.
            # A shared claim is renewed all the same: it only keeps others from removing files.
            is_past = self._silent_s() > self._longest_silence_s
            if self._is_exclusive and self._is_granted and is_past:
                return
            try:
                self._renew()
            except StoreError as error:
                _log.warning("cannot renew a lock: %s", error)

    def _settle(self, *, wait: bool) -> bool:
        """List claims until this claim holds the lock (True) or must withdraw (False)."""
        give_up_s = time.monotonic() + _SETTLE_S
        unlisted_since_s, num_unlisted = 0.0, 0
        while True:
            listing = self._store.listing(self._lock)
            if self._name not in listing.modified:  # others removed it while we were cut off
                if num_unlisted == 0:
                    unlisted_since_s = time.monotonic()
                num_unlisted += 1
                if num_unlisted >= _UNLISTED_TIMES:  # once may be because we were stopped for long
                    self._check_listed_by(unlisted_since_s + _UNLISTED_S)
                self._renew()
                time.sleep(_POLL_S)
                continue
            num_unlisted = 0
            rivals, dead = self._live_rivals(listing)
            for name in dead:
                self._store.delete(
                    self._path(name)
                )  # each name is used only once, so this cannot delete a new claim
            if not rivals:
                return True
            if not self._goes_before(rivals, wait=wait):
                return False
            if not wait and time.monotonic() > give_up_s:
                return False
            time.sleep(_POLL_S)

    def _check_listed_by(self, end_s: float) -> None:
        if time.monotonic() > end_s:
            raise StoreError(
                f"{self._store.address()} lists no object that it has just stored "
                f"({self._store.describe(self._path(self._name))}), so no lock is safe there: check "
                "LLMPERF_S3_ENDPOINT, or use another store"
            )

    def _goes_before(self, rivals: list[str], *, wait: bool) -> bool:
        """Whether this claim stays although ``rivals`` conflict with it.

        Of several exclusive claims, only the one with the smallest name stays, so that one of them
        is granted. An exclusive claim that waits also stays beside shared claims: later shared
        claims withdraw, and those that are granted end by themselves.
        """
        if not self._is_exclusive:
            return False
        return all(name > self._name if name.startswith(_EXCLUSIVE) else wait for name in rivals)

    def _live_rivals(self, listing: Listing) -> tuple[list[str], list[str]]:
        """Return the claims that conflict with this claim: the live ones, and the dead ones."""
        live: list[str] = []
        dead: list[str] = []
        for name, modified in listing.modified.items():
            if name != self._name and (self._is_exclusive or name.startswith(_EXCLUSIVE)):
                (dead if self._is_dead(name, modified, listing.now) else live).append(name)
        return live, dead

    def _is_dead(self, name: str, modified: datetime, now: datetime | None) -> bool:
        if now is not None and (now - modified).total_seconds() > self._timing.stale_s:
            return True
        if name not in self._holders:
            self._holders[name] = self._holder_of(name)
        holder = self._holders[name]
        return holder is not None and has_ended(holder)

    def _holder_of(self, name: str) -> Holder | None:
        try:
            told = json.loads(self._store.read_bytes(self._path(name)))
            return Holder(**{field.name: told[field.name] for field in dataclasses.fields(Holder)})
        except (FileNotFoundError, KeyError, ValueError, TypeError):
            return None

    def _path(self, name: str) -> str:
        return f"{self._lock}/{name}"

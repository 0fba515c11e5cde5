"""What a schedule begins with: a plan, some processes, how they are configured, and perhaps a planted bug.

Owns what is drawn from the seed before anything runs.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.disk import SimFilesystem
from tests.simulation.ledgers import SimLocation
from workers.collect.loop import CollectLoop
from workers.config import LedgerConfig, StoreConfig

TTL_S = 4.0
LEDGER_CONFIG = LedgerConfig(lease_ttl_s=TTL_S)
_COMMIT_INTERVALS_S = (0.0, 1.0)
_PUBLISH_INTERVALS_S = (0.3, 1.5)
_DURATIONS_S = (0.2, 0.7, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Where a bug can be put in: parts of the world, and replaced functions of the shipped modules."""

    filesystem_class: type[SimFilesystem] = SimFilesystem
    location_class: type[SimLocation] = SimLocation
    loop_class: type[CollectLoop] = CollectLoop
    sweeps_beside_others: bool = False
    replaced: tuple[tuple[object, str, Callable[..., object]], ...] = ()


NOTHING_PLANTED = Planted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a schedule begins with."""

    num_tasks: int
    num_processes: int
    claim_ahead: int
    durations_s: tuple[float, ...]
    store_config: StoreConfig
    sees_deaths: bool
    writing_polls: int
    """So often a collector asks in vain whether its shard is written; then it is written all at once."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Setup:
        """Draw one."""
        num_tasks = rng.randint(2, 4)
        return cls(
            num_tasks=num_tasks,
            num_processes=rng.randint(1, 3),
            claim_ahead=rng.randint(1, 3),
            durations_s=tuple(rng.choice(_DURATIONS_S) for _ in range(num_tasks)),
            store_config=_store_config(
                rng.choice(_COMMIT_INTERVALS_S),
                rng.choice(_PUBLISH_INTERVALS_S),
                rng.choice((1, 20_000)),
            ),
            sees_deaths=rng.random() < 0.7,
            writing_polls=rng.choice((0, 0, 1, 3)),
        )


@functools.cache
def _store_config(commit_s: float, publish_s: float, max_rows: int) -> StoreConfig:
    return StoreConfig(
        commit_interval_s=commit_s, publish_interval_s=publish_s, max_shard_rows=max_rows
    )

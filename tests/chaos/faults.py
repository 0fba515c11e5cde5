"""The faults of a storm: what befalls one process, all of them, their server or their disk, each a function of the world.

Owns which there are, how often each comes, and what each needs of this machine. When they come is ``storm.py``'s.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from tests.chaos.world import LEASE_TTL_S, NODE, NODE_MEMORY_BYTES, World
from tests.support.collecting import kill


def kill_actor(world: World) -> bool:
    """SIGKILL an actor; its children must go with it."""
    victim = world.pick("ray::_SlotActor")
    if victim is None:
        return False
    kill(victim.pid)
    return True


def kill_child(world: World) -> bool:
    """SIGKILL a child that times, compiles or analyses."""
    kinds = (
        "workers.measure.run_child",
        "workers.execution.compile_child",
        "workers.execution.analysis_child",
    )
    found = [one for kind in kinds for one in world.processes(kind)]
    victim = world.chance.choice(found) if found else None
    if victim is None:
        return False
    kill(victim.pid)
    return True


def kill_node(world: World) -> bool:
    """Take a node away without a word; another one comes."""
    nodes = sorted(world.cluster.worker_nodes, key=lambda node: str(node.node_id))
    if not nodes:
        return False
    world.cluster.remove_node(world.chance.choice(nodes), allow_graceful=False)
    world.cluster.add_node(num_cpus=1, object_store_memory=NODE_MEMORY_BYTES, **NODE)
    return True


def kill_driver(world: World) -> bool:
    """SIGKILL a driver."""
    living = world.living_drivers()
    if not living:
        return False
    victim = world.chance.choice(living)
    kill(victim.pid)
    victim.wait()
    return True


def second_driver(world: World) -> bool:
    """Submit the command once more while it runs, as a user does by mistake: both attach to one plan.

    It finds every GPU taken and waits for them; one whose actor dies may become its own, and whatever ends first leaves them all.
    """
    if len(world.living_drivers()) != 1:
        return False
    world.start_driver()
    return True


def kill_server(world: World) -> bool:
    """SIGKILL Redis; it comes back after a moment, with what its append-only file has, or with nothing."""
    world.server.kill()
    time.sleep(world.chance.random() * 2)
    world.server.start()
    return True


def flush_server(world: World) -> bool:
    """Wipe Redis while all actors use it."""
    return world.server.flush()


def pause_server(world: World) -> bool:
    """Redis cannot be reached for a while, as in a partition."""
    world.server.signal(signal.SIGSTOP)
    time.sleep(1 + world.chance.random() * 3)
    world.server.signal(signal.SIGCONT)
    return True


def suspend_actor(world: World) -> bool:
    """An actor sleeps until its leases went to others, and wakes up with its results."""
    victim = world.pick("ray::_SlotActor")
    if victim is None:
        return False
    try:
        victim.suspend()
        time.sleep(LEASE_TTL_S * 1.5)
        victim.resume()
    except psutil.Error:
        return False
    return True


def cut_off(world: World) -> bool:
    """One actor does not reach Redis until its leases went to others, while its neighbours do."""
    victim = world.pick("ray::_SlotActor")
    if victim is None:
        return False
    world.inflict(victim.pid, "cut", world.server.port, seconds=LEASE_TTL_S * 1.5)
    return True


def fill_disk(world: World) -> bool:
    """No room left for a while: for one actor, for all, or for what Redis appends."""
    actors = [one.pid for one in world.processes("ray::_SlotActor")]
    whom = world.chance.choice([*[[pid] for pid in actors], actors])
    if world.server.has_aof and world.chance.random() < 1 / 4:
        whom = [world.server.pid]
    seconds = 1 + 3 * world.chance.random()
    for pid in whom:
        world.inflict(pid, "full", seconds=seconds)
    return bool(whom)


def slow_disk(world: World) -> bool:
    """What is made durable takes its time, for all actors."""
    actors = world.processes("ray::_SlotActor")
    for one in actors:
        world.inflict(one.pid, "slow", 0.7, seconds=LEASE_TTL_S)
    return bool(actors)


def set_clock(world: World) -> bool:
    """One actor's clock is a day off from now on, or that of Redis's host for a while, which is the leases'."""
    victim = world.chance.choice([world.pick("ray::_SlotActor"), None])
    sign = world.chance.choice(["", "-"])
    if victim is None:
        world.inflict(world.server.pid, "skew", f"{sign}60", seconds=2)
    else:
        world.inflict(victim.pid, "skew", f"{sign}86400")
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and how often it comes beside the others."""

    inflict: Callable[[World], bool]
    """Does it; False if there is no process that it could hit."""
    weight: int
    is_unkind: bool = False
    """Whether it comes from ``unkind.c``, so from a C compiler."""

    @property
    def name(self) -> str:
        """As it is counted."""
        return self.inflict.__name__


FAULTS = (
    Fault(kill_actor, 6),
    Fault(kill_child, 6),
    Fault(kill_node, 2),
    Fault(kill_driver, 2),
    Fault(second_driver, 2),
    Fault(kill_server, 3),
    Fault(flush_server, 3),
    Fault(pause_server, 2),
    Fault(suspend_actor, 2),
    Fault(cut_off, 3, is_unkind=True),
    Fault(fill_disk, 3, is_unkind=True),
    Fault(slow_disk, 2, is_unkind=True),
    Fault(set_clock, 3, is_unkind=True),
)
UNKIND = tuple(sorted(fault.name for fault in FAULTS if fault.is_unkind))
"""Those that a machine without a C compiler leaves out."""


def drawn_from(*, has_compiler: bool) -> list[Fault]:
    """Return the kinds that this machine can do, each as often as its weight: a seed draws from them in this order."""
    return [
        fault
        for fault in FAULTS
        if has_compiler or not fault.is_unkind
        for _ in range(fault.weight)
    ]

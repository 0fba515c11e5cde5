"""``python -m tests.simulation``: search schedules for lost or doubled tasks; exits 1 with the schedule it found.

``--planted NAME`` puts a bug in (then finding it is the success); ``--replay SEED`` prints one schedule.
"""

from __future__ import annotations

import argparse
import logging
import sys

from tests.simulation.decisions import Kind
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import run_schedule
from tests.simulation.search import SearchReport, describe, search, shrink

_EVENTS = (
    *(kind.value for kind in Kind),
    "built a ledger",
    "attached again",
    "found a ledger unreadable that others use",
    "used a ledger wiped a moment ago",
    "lease lost",
    "shard committed",
    "shard refused",
    "orphan swept",
    "orphan adopted",
    "commit saved",
    "lost the race for a file",
    "left a temporary file",
    "disk was full",
    "got no answer",
    "did what it got no answer to",
    "lost a ledger and could not reach the next",
    "put an earlier ledger in place",
    "restored a ledger in use",
    "a shard vanished",
    "found its folder gone",
)
"""Each must have happened at least once in a search of some thousand schedules."""
_ENOUGH_FOR_ALL_EVENTS = 2_000


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--planted", choices=sorted(PLANTED), default="nothing")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print one schedule and stop")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the store tells of every damaged shard it meets: many, here
    if arguments.replay is not None:
        outcome = run_schedule(
            arguments.replay, planted=PLANTED[arguments.planted], with_trace=True
        )
        print(describe(outcome))
        return 0 if outcome.violation is None else 1
    report = search(
        first=arguments.seed,
        schedules=arguments.schedules,
        processes=arguments.processes,
        planted=arguments.planted,
        progress=_progress,
    )
    return _judge(report, arguments.planted)


def missing_events(report: SearchReport) -> list[str]:
    """Return the kinds of events that a search never met."""
    return [event for event in _EVENTS if not report.coverage[event]]


def _progress(report: SearchReport, seconds: float) -> None:
    rate = report.num_schedules / seconds
    print(
        f"\r{report.num_schedules} schedules, {report.num_points} operations, {rate:.0f} schedules/s",
        end="",
        file=sys.stderr,
        flush=True,
    )


def _judge(report: SearchReport, planted: str) -> int:
    print(file=sys.stderr)
    for event in _EVENTS:
        print(f"{report.coverage[event]:>10}  {event}")
    if report.failure is not None:
        print(f"\nfound after {report.num_schedules} schedules; the decisions that it needs:")
        print(describe(shrink(report.failure, planted=planted)))
        print(
            f"replay: python -m tests.simulation --planted {planted} --replay {report.failure.seed}"
        )
        return 1 if planted == "nothing" else 0
    missing = missing_events(report) if report.num_schedules >= _ENOUGH_FOR_ALL_EVENTS else []
    if missing:
        print(f"never happened: {', '.join(missing)}")
    if planted != "nothing":
        print(f"{planted} was not found in {report.num_schedules} schedules")
    lost = "no task lost or doubled" if planted == "nothing" else ""
    print(f"{report.num_schedules} schedules, {report.num_points} operations: {lost}")
    return 1 if missing or planted != "nothing" else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.chaos``: the long chaos run, by hand; prints one line of figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.kills import run_chaos
from tests.support.collecting import Collect, replay_file, write_kernels


def main() -> int:
    """Run, print, and return 1 if anything was lost, doubled or changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--every", type=int, default=2, help="committed shards between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="", help="a device selector; default: replay")
    parser.add_argument("--corpus", type=Path, help="default: generated map kernels")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        slow = [{"kernel": "*", "action": "slow", "seconds": 0.005}]
        device = options.device or replay_file(root / "replay.json", behaviours=slow)
        num_kernels = options.kills * options.every * 2
        corpus = options.corpus or write_kernels(
            root / "kernels", [f"k{index:04d}" for index in range(num_kernels)]
        )
        command = Collect(corpus, root / "data", device, CHAOS_OPTIONS)
        report = run_chaos(
            command, num_kills=options.kills, every_shards=options.every, seed=options.seed
        )
    kills = ", ".join(f"{name} {count}" for name, count in sorted(report.kills.items()))
    sys.stdout.write(
        f"kills {report.kills.total()} ({kills}), starts {report.starts}, tasks {report.tasks}, "
        f"samples {report.samples}, {report.seconds:.0f} s, problems {len(report.problems)}\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"PROBLEM {problem}\n")
    return 1 if report.problems or report.kills.total() < options.kills else 0


CHAOS_OPTIONS = (
    "--samples-per-kernel", "6",
    "--set", "timing.spin_up_ms=0",
    "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.05",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())

"""A part of ``benchmarks.collecting.collectors`` that dies and hangs on request.

``python -m tests.support.processes.stub_part WORK LOG``
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.collecting.collectors.jobs import read_work
from benchmarks.collecting.collectors.log import PartLog, begun_items, read_log


def main() -> int:
    """Do every job that was not begun; the job's name selects its behaviour."""
    work_path, log_path = map(Path, sys.argv[1:])
    done = begun_items(read_log(log_path))
    jobs = read_work(work_path).jobs
    if any(job.name == "no_start" for job in jobs):
        sys.stderr.write("nothing to run on\n")
        return 4
    with PartLog(log_path) as log:
        log.ready()
        for job in jobs:
            if job.kernel_id in done:
                continue
            log.begin(job.kernel_id)
            if job.name == "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            if job.name == "hangs":
                time.sleep(600)
            log.write({"kernel_id": job.kernel_id, "sample_id": job.kernel_id, "status": "ok"})
    return 0


if __name__ == "__main__":
    sys.exit(main())

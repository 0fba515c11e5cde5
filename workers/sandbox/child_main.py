"""A child's first steps: tie its life to the parent's, limit its files, check its code, and serve.

Owns the process boundary of every child, the one place that catches every exception.
"""

from __future__ import annotations

import resource
import socket
import sys
import traceback
from collections.abc import Callable

from llmperf_common.installation import check_as_parent
from workers.sandbox.address_space import lower_limit
from workers.sandbox.channel import Channel, ChannelClosedError
from workers.sandbox.messages import ChildCrashed
from workers.sandbox.parent_tie import die_before_parent, die_with_parent

_MAX_FILE_BYTES = 512 * 2**20  # largest size of any file that a child writes


def serve(main: Callable[[Channel, str], None]) -> None:
    """Run ``main(channel, argument)`` as a child process that ``workers.sandbox.child`` started.

    Returns when the parent closes the channel; reports any exception and exits with code 1.
    """
    descriptor, parent_pid, argument = sys.argv[1:]
    die_with_parent(int(parent_pid))
    die_before_parent()
    # A kernel may write into any file descriptor, so core dumps and logs must stay small.
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        check_as_parent()
        main(channel, argument)
    except ChannelClosedError:
        return
    except Exception as error:  # noqa: BLE001  (the process boundary: everything becomes a report)
        summary = f"{type(error).__name__}: {error}"
        channel.send(ChildCrashed(traceback=traceback.format_exc(), summary=summary))
        sys.exit(1)

"""The base class of every foreseeable error, and the exit codes of a process.

A user can correct a foreseeable error: its message says what is wrong, where, and what to do. Each
class is declared beside the code that raises it and carries its exit code::

    LlmperfError
    +-- CommandError           (llmperf.exits) the exit code is an argument
    +-- ConfigError            2  a config key or value; also a ValueError
    |   +-- OutputTaken           the output path holds something the command did not write
    |       +-- RunExists         the output folder holds another run
    +-- MissingExtra           2  an optional library is not installed; also an ImportError
    +-- LedgerUrlError         2  the URL of a ledger; also a ValueError
    +-- ManyHostsError         2  a ledger in a file cannot serve several hosts; also a ValueError
    +-- ClusterAddressError    2  the address of a Ray cluster; also a ValueError
    +-- RayUnreachable         2  the given Ray cluster cannot be joined; also a ValueError
    +-- StoreError             3  a dataset that cannot be read or written
    |   +-- ForeignRunError    2  the folder holds the dataset of another run
    +-- LedgerAwayError        3  the ledger cannot be reached
    +-- CorpusError            3  sources without any kernel; also a ValueError
    +-- ParserError            3  the parser works for no source on this machine
    +-- SplitError             3  a split that cannot be made; also a ValueError
    +-- BadInput               3  an unusable kernel, argument, run or dataset; also a ValueError
    |   +-- SeenRows              rows of families that the model was trained on
    |   +-- FitFailed             a fit cannot continue; its last complete checkpoint stays
    +-- FirstProcessFailedError   (torchrun, Ray) the first process failed; exit code: an argument
    +-- InstallationChanged    3  LLMPerf's own files changed while it ran
    +-- UnfitFileError         3  a file that is not regular, outside of its folder, or too large
    +-- UnknownFeatureError    3  a model needs a feature that does not exist; also a ValueError
    +-- DeviceLostError        4  the device cannot be opened, or is lost
    +-- GpuTakenError          4  another process has the GPU
    +-- ClusterTooSmall        4  the Ray cluster has too few free CPUs or GPUs
    +-- Interrupted          130  a signal ended a fit; its state is saved
    +-- NothingCompilesError   5  no kernel can be built here

Any other exception is a bug of LLMPerf.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit code of a process."""

    DONE = 0
    USAGE = 2
    BAD_INPUT = 3
    NO_DEVICE = 4
    TOO_MANY_FAILURES = 5
    INTERRUPTED = 130


class LlmperfError(Exception):
    """Base class of every foreseeable error; the message says what is wrong, where, and what to do.

    Attributes:
        exit_code: exit code of the command line.
        is_echo: whether another process of the same command has already reported the cause.
    """

    exit_code: Exit = Exit.BAD_INPUT
    is_echo: bool = False

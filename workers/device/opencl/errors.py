"""Turn OpenCL's error numbers into failure codes.

Owns the table, and the one context manager that handles every pyopencl error of a kernel. An error
is identified by its number, never by its text, which differs between vendors and releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl  # noqa: TID251

from llmperf_common.failures import Failure, FailureCode, Stage
from workers.device.interface import DeviceFailure

BUILD_PROGRAM_FAILURE = -11

_OUT_OF_MEMORY = frozenset({-4, -5, -6, -61})
"""MEM_OBJECT_ALLOCATION_FAILURE, OUT_OF_RESOURCES, OUT_OF_HOST_MEMORY, INVALID_BUFFER_SIZE."""

_LAUNCH_ERRORS = frozenset({-48, -49, -50, -51, -52, -53, -54, -55, -56, -63})
"""INVALID_KERNEL to INVALID_KERNEL_ARGS; dimension, work-group and work-item sizes, offset."""

_BUILD_ERRORS = frozenset({-11, -15, -17, -42, -43, -44, -45, -46, -47})
"""Build, compile and link failures; invalid binary, options, program, executable, kernel name."""

_DEVICE_FAULTS = frozenset({-14, -36, -9999})
"""A failed event in the wait list, a lost queue, and NVIDIA's own number for an illegal access."""


def failure_of(
    error: cl.Error, *, stage: Stage, waiting: bool = False, log: str = ""
) -> DeviceFailure:
    """Return the failure that a pyopencl error means.

    Args:
        error: the error that pyopencl raised.
        stage: the stage of the kernel's life in which it was raised.
        waiting: whether the call waited for launched work. If so, any error is the kernel's fault,
            and the context is lost (NVIDIA reports an illegal access as OUT_OF_RESOURCES).
        log: the compiler's log, if any.
    """
    number = int(error.code)
    detail = log or f"{error.routine}: {error}"
    if waiting or number in _DEVICE_FAULTS:
        return _failure(FailureCode.DEVICE_FAULT, stage, detail, sticky=True)
    if number in _BUILD_ERRORS:
        return _failure(FailureCode.BUILD_ERROR, stage, detail)
    if number in _OUT_OF_MEMORY:
        return _failure(FailureCode.OUT_OF_MEMORY, stage, detail)
    if number in _LAUNCH_ERRORS:
        return _failure(FailureCode.LAUNCH_ERROR, stage, detail)
    return _failure(FailureCode.DEVICE_FAULT, stage, detail, sticky=True)


@contextmanager
def cl_errors(stage: Stage, *, waiting: bool = False) -> Iterator[None]:
    """Turn any pyopencl error of the block into a ``DeviceFailure``."""
    try:
        yield
    except cl.Error as error:
        raise failure_of(error, stage=stage, waiting=waiting) from error


def launch_error(detail: str) -> DeviceFailure:
    """Return the failure of a launch that LLMPerf refuses, because the driver could crash on it."""
    return _failure(FailureCode.LAUNCH_ERROR, Stage.LAUNCH, detail)


def out_of_memory(detail: str) -> DeviceFailure:
    """Return the failure of a launch config that needs more memory than the device has."""
    return _failure(FailureCode.OUT_OF_MEMORY, Stage.LAUNCH, detail)


def _failure(
    code: FailureCode, stage: Stage, detail: str, *, sticky: bool = False
) -> DeviceFailure:
    return DeviceFailure(Failure(code=code, stage=stage, detail=detail), sticky=sticky)

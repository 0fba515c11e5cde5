"""``llmperf doctor``: what the machine can run, and what is missing.

Owns only the layout of the answer. ``workers/discovery/runtime_trial.py`` finds out why an OpenCL
runtime is unusable and how to mend it, ``workers/discovery/candidates.py`` which runtimes are
absent.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmperf.cli.console import answer, answer_json, say
from llmperf.exits import Exit

if TYPE_CHECKING:
    from workers.device.interface import DeviceRef
    from workers.device.nvidia.gpu_state import GpuState

_EXTRAS = {
    "opencl": ("pyopencl",),
    "cluster": ("ray", "redis"),
    "gbdt": ("lightgbm",),
    "train": ("torch", "deepspeed", "transformers", "tokenizers", "safetensors", "lightgbm"),
    "s3": ("boto3",),
    "cuda": ("pyopencl", "pycuda", "pynvml"),
}


def doctor(
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Try every CPU runtime again, including runtimes with a stored verdict.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the usable devices of this machine, and how to make the others usable."""
    from workers.device.nvidia.gpu_state import gpu_state  # noqa: PLC0415
    from workers.discovery.find import (  # noqa: PLC0415
        DeviceReport,
        NoDevice,
        choose,
        try_all_runtimes,
    )

    report: DeviceReport = try_all_runtimes(again=again, tell=say)
    states = [gpu_state(tried.device) if tried.device else None for tried in report.devices]
    extras = {name: _missing(modules) for name, modules in _EXTRAS.items()}
    found = choose("cpu", report)
    work = None if isinstance(found, NoDevice) else found
    usable = [tried for tried in report.devices if tried.usable]
    if as_json:
        answer_json(_document(report, states, extras, work))
    else:
        _tell(report, states, extras, work)
    if not usable:
        raise typer.Exit(Exit.NO_DEVICE)


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _document(
    report: Any, states: list[GpuState | None], extras: dict[str, list[str]], work: DeviceRef | None
) -> dict[str, Any]:
    return {
        "llmperf": importlib.metadata.version("llmperf"),
        "devices": [
            {
                "selector": tried.ref.selector,
                "source": tried.source.value,
                "platform": tried.ref.platform,
                "name": tried.ref.name,
                "usable": tried.usable,
                "reason": tried.reason or None,
                "device": dataclasses.asdict(tried.device) if tried.device else None,
                "gpu": _state_document(state) if state else None,
            }
            for tried, state in zip(report.devices, states, strict=True)
        ],
        "absent": [
            {"source": absent.source.value, "reason": absent.reason, "mend": absent.mend}
            for absent in report.absent
        ],
        "extras": {name: {"missing": missing} for name, missing in extras.items()},
        "work": {"counted_on": work.selector if work else None},
    }


def _state_document(state: GpuState) -> dict[str, Any]:
    document = dataclasses.asdict(state)
    if state.reading is not None:
        document["reading"] |= {"idle": state.reading.is_idle}
        del document["reading"]["at_s"]
    return document | {"throttle_reasons": list(state.throttle_reasons)}


def _tell(
    report: Any, states: list[GpuState | None], extras: dict[str, list[str]], work: DeviceRef | None
) -> None:
    answer("devices")
    for tried, state in zip(report.devices, states, strict=True):
        mark = "usable    " if tried.usable else "NOT usable"
        answer(f"  {mark}  --device {tried.ref.selector:<8} {tried.ref.name}")
        answer(f"              {tried.source.value}: {tried.ref.platform}")
        if tried.device:
            device = tried.device
            answer(
                f"              {device.compute_units} compute units, "
                f"{device.global_memory_bytes / 2**30:.1f} GiB, class {device.device_class}"
            )
        if state:
            _tell_state(state)
        if not tried.usable:
            answer(f"              why: {tried.reason}")
    for absent in report.absent:
        answer(f"  absent      {absent.source.value}: {absent.reason}")
        answer(f"              to mend: {absent.mend}")
    answer("extras")
    for name, missing in extras.items():
        verdict = "complete" if not missing else f"missing {', '.join(missing)}"
        mend = f'   pip install "llmperf[{name}]"' if missing else ""
        answer(f"  {name:<9} {verdict}{mend}")
    answer("work columns: operations and accesses of a launch, counted on a CPU OpenCL device")
    if work:
        answer(f"  counted on  --device {work.selector:<8} {work.name}")
    else:
        answer(
            "  NOT counted: no CPU OpenCL device is usable; `llmperf collect` leaves these columns "
            "empty"
        )


def _tell_state(state: GpuState) -> None:
    indent = "              "
    if state.absent is not None:
        answer(f"{indent}clocks, health and processes are unknown: {state.absent.reason}")
        answer(f"{indent}to mend: {state.absent.mend}")
    if state.reading is not None and state.limits is not None:
        reading, limits = state.reading, state.limits
        answer(
            f"{indent}now {_of(reading.sm_clock_mhz, limits.max_sm_clock_mhz)} MHz, "
            f"memory {_of(reading.memory_clock_mhz, limits.max_memory_clock_mhz)} MHz, "
            f"{_figure(reading.temperature_c)} °C, "
            f"{_of(reading.power_w, limits.power_limit_w)} W"
        )
        if state.throttle_reasons:
            answer(f"{indent}throttled: {', '.join(state.throttle_reasons)}")
    for problem in state.health.problems if state.health else ():
        answer(f"{indent}NOT healthy: {problem}")
    for one in state.processes or ():
        used = (
            "" if one.used_memory_bytes is None else f", {one.used_memory_bytes / 2**20:,.0f} MiB"
        )
        answer(f"{indent}computing on it: pid {one.pid}{used}")
    if state.processes == ():
        answer(f"{indent}no process computes on this device")
    if state.owner is not None:
        answer(f"{indent}owned by {state.owner.describe()}")


def _of(value: float | None, most: float | None) -> str:
    return _figure(value) if most is None else f"{_figure(value)} of {_figure(most)}"


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"

"""``llmperf doctor``."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from typing import Annotated, Any

import typer

from llmperf.cli.console import answer, answer_json
from llmperf.exits import Exit

_EXTRAS = {
    "opencl": ("pyopencl",),
    "cluster": ("ray", "redis"),
    "train": ("lightgbm", "sklearn", "torch", "transformers", "deepspeed"),
    "cuda": ("pycuda",),
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what is usable on this machine, what is not, and how to mend it."""
    from workers.device.find import DeviceReport, probe_all  # noqa: PLC0415

    report: DeviceReport = probe_all()
    extras = {name: _missing(modules) for name, modules in _EXTRAS.items()}
    usable = [probed for probed in report.devices if probed.usable]
    if as_json:
        answer_json(_document(report, extras))
    else:
        _tell(report, extras)
    if not usable:
        raise typer.Exit(Exit.NO_DEVICE)


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _document(report: Any, extras: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "llmperf": importlib.metadata.version("llmperf"),
        "devices": [
            {
                "selector": probed.ref.selector,
                "source": probed.source.value,
                "platform": probed.ref.platform,
                "name": probed.ref.name,
                "usable": probed.usable,
                "reason": probed.reason or None,
                "device": dataclasses.asdict(probed.device) if probed.device else None,
            }
            for probed in report.devices
        ],
        "absent": [
            {"source": absent.source.value, "reason": absent.reason, "mend": absent.mend}
            for absent in report.absent
        ],
        "extras": {name: {"missing": missing} for name, missing in extras.items()},
    }


def _tell(report: Any, extras: dict[str, list[str]]) -> None:
    answer("devices")
    for probed in report.devices:
        mark = "usable    " if probed.usable else "NOT usable"
        answer(f"  {mark}  --device {probed.ref.selector:<8} {probed.ref.name}")
        answer(f"              {probed.source.value}: {probed.ref.platform}")
        if probed.device:
            device = probed.device
            answer(
                f"              {device.compute_units} compute units, "
                f"{device.global_memory_bytes / 2**30:.1f} GiB, class {device.device_class}"
            )
        if not probed.usable:
            answer(f"              why: {probed.reason}")
    for absent in report.absent:
        answer(f"  absent      {absent.source.value}: {absent.reason}")
        answer(f"              to mend: {absent.mend}")
    answer("extras")
    for name, missing in extras.items():
        state = "complete" if not missing else f"missing {', '.join(missing)}"
        mend = f'   pip install "llmperf[{name}]"' if missing else ""
        answer(f"  {name:<9} {state}{mend}")

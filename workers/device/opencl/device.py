"""Find an OpenCL device by name, and make its record.

Decides which pyopencl device a ``DeviceRef`` means, and makes a ``Device`` from it.
``peaks.py`` measures peaks; ``workers/discovery/find.py`` decides which devices are usable.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from pathlib import Path

import pyopencl as cl  # noqa: TID251

from llmperf_common.ids import content_id
from llmperf_common.records import Device
from workers.device.interface import DeviceRef
from workers.device.nvidia.cache import NVIDIA_PLATFORM, NvidiaFacts, l2_cache_bytes, nvidia_facts

POCL_PLATFORM = "Portable Computing Language"

_PLATFORM_SLUGS = {POCL_PLATFORM: "pocl", "Intel(R) OpenCL": "intel", "Oclgrind": "oclgrind"}
_CL_DEVICE_UUID_KHR = 0x106A
_UUID_BYTES = 16
_VENDOR_NOISE = re.compile(
    r"\((r|tm)\)|\bpthread-|\bcpu\b|\b\d+-core\b|\bprocessor\b|@.*$|\bnvidia\b", re.IGNORECASE
)


def find_cl_device(ref: DeviceRef) -> cl.Device:
    """Return the device with the platform and device name of ``ref``, not only with its index.

    ``cuda:N`` counts the GPUs of its platform, because cards of one model share their name.

    Raises:
        LookupError: There is no such device; the message lists the devices found.
    """
    seen: list[str] = []
    for platform in _platforms():
        devices = _devices_of(platform)
        seen += [f"{platform.name.strip()}: {device.name.strip()}" for device in devices]
        if platform.name.strip() != ref.platform:
            continue
        named = [device for device in devices if device.name.strip() == ref.name]
        if ref.selector.startswith("cuda"):
            index = int(ref.selector.partition(":")[2] or 0)
            gpus = [device for device in devices if device.type & cl.device_type.GPU]
            named = [gpus[index]] if index < len(gpus) and gpus[index] in named else []
        if named:
            return named[0]
    raise LookupError(
        f"no device {ref.name!r} of platform {ref.platform!r} ({ref.selector}); "
        f"devices found: {', '.join(seen) or 'none'}"
    )


def opened_queue(ref: DeviceRef) -> tuple[cl.Device, cl.Context, cl.CommandQueue]:
    """Return the device that ``ref`` names, with a new context and queue.

    Raises:
        LookupError: The device is not present or cannot be opened.
    """
    cl_device = find_cl_device(ref)
    try:
        context = cl.Context([cl_device])
        return cl_device, context, cl.CommandQueue(context)
    except cl.Error as error:
        raise LookupError(f"{ref.name!r} cannot be opened: {error}") from error


def _platforms() -> list[cl.Platform]:
    try:
        return list(cl.get_platforms())
    except cl.Error:  # the loader's answer if no driver is installed
        return []


def _devices_of(platform: cl.Platform) -> list[cl.Device]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices answers DEVICE_NOT_FOUND
        return []


def list_cl_devices() -> list[tuple[DeviceRef, cl.Device]]:
    """Return every device that this process sees, with the selector that finds it again."""
    found: list[tuple[DeviceRef, cl.Device]] = []
    for platform in cl.get_platforms():
        num_gpus = 0
        for device in _devices_of(platform):
            selector = "cpu"
            if device.type & cl.device_type.GPU:
                selector = f"cuda:{num_gpus}" if platform.name.strip() == NVIDIA_PLATFORM else "gpu"
                num_gpus += 1
            elif platform.name.strip() == POCL_PLATFORM:
                selector = "pocl"
            ref = DeviceRef(
                selector=selector, platform=platform.name.strip(), name=device.name.strip()
            )
            found.append((ref, device))
    return found


def describe(device: cl.Device) -> Device:
    """Return the record of ``device``, without peaks and without facts from NVML."""
    platform = device.platform.name.strip()
    name = device.name.strip()
    driver = f"{device.platform.version.strip()} / {device.driver_version.strip()}"
    device_class = device_class_slug(
        platform=platform, name=name, compute_units=device.max_compute_units,
        is_cpu=bool(device.type & cl.device_type.CPU),
    )  # fmt: skip
    uuid = device_uuid(device) or content_id("device_uuid", [device_class, name, driver])
    return Device(
        device_id=content_id("device", [device_class, uuid, name, driver]),
        device_class=device_class,
        device_uuid=uuid,
        name=name,
        platform=platform,
        driver=driver,
        compute_units=device.max_compute_units,
        max_work_group_size=device.max_work_group_size,
        max_work_item_sizes=tuple(device.max_work_item_sizes),
        max_clock_mhz=float(device.max_clock_frequency) or None,
        global_memory_bytes=device.global_mem_size,
        max_allocation_bytes=device.max_mem_alloc_size,
        local_memory_bytes=device.local_mem_size,
        last_level_cache_bytes=last_level_cache_bytes(device),
        has_fp64=bool(device.double_fp_config),
        has_half="cl_khr_fp16" in device.extensions.split(),
        max_constant_buffer_bytes=int(device.max_constant_buffer_size) or None,
        **dataclasses.asdict(nvidia_facts(uuid) if platform == NVIDIA_PLATFORM else NvidiaFacts()),
    )


def device_class_slug(*, platform: str, name: str, compute_units: int, is_cpu: bool) -> str:
    """Return the name under which equal devices share their samples.

    A GPU's name is its model. On a CPU the runtime and the number of cores decide the time as much
    as the model does, so the name has all three.

    >>> device_class_slug(
    ...     platform="NVIDIA CUDA", name="NVIDIA H200", compute_units=132, is_cpu=False)
    'h200'
    >>> device_class_slug(platform="Portable Computing Language", name="pthread-AMD EPYC",
    ...                   compute_units=2, is_cpu=True)
    'pocl-amd-epyc-2cu'
    """
    model = _slug(_VENDOR_NOISE.sub(" ", name))
    if not is_cpu:
        return model
    runtime = _PLATFORM_SLUGS.get(platform) or _slug(_VENDOR_NOISE.sub(" ", platform))
    return f"{runtime}-{model}-{compute_units}cu"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def last_level_cache_bytes(device: cl.Device) -> int:
    """Return the size of the last-level cache in bytes, the largest of all known figures.

    OpenCL's figure is often too small. Intel's runtime reports the L2 cache of one core, so for a
    CPU the caches that Linux lists count, too. NVIDIA's runtime reports a first-level cache, so for
    a GPU the CUDA driver's figure counts, too.
    """
    sizes = [int(device.global_mem_cache_size)]
    if device.type & cl.device_type.CPU:
        files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        sizes += [_cache_bytes(file.read_text().strip()) for file in files]
    elif device.platform.name.strip() == NVIDIA_PLATFORM:
        sizes.append(l2_cache_bytes(device_uuid(device) or "") or 0)
    return max(sizes)


def _cache_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None:
        return 0
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]


def device_uuid(device: cl.Device) -> str | None:
    """Return the vendor's UUID of the device; None if it has none.

    pyopencl has no name for CL_DEVICE_UUID_KHR and refuses a bare number, so this asks the ICD
    loader that pyopencl has loaded.
    """
    if "cl_khr_device_uuid" not in device.extensions.split():
        return None
    library = _loaded_icd_library()
    if library is None:
        return None
    buffer = (ctypes.c_ubyte * _UUID_BYTES)()
    status = library.clGetDeviceInfo(
        ctypes.c_void_p(device.int_ptr),
        _CL_DEVICE_UUID_KHR,
        ctypes.c_size_t(_UUID_BYTES),
        buffer,
        None,
    )
    digits = bytes(buffer).hex()
    if status != 0 or not digits.strip("0"):
        return None
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _loaded_icd_library() -> ctypes.CDLL | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if "libOpenCL" in Path(path).name:
            return ctypes.CDLL(path)
    return None

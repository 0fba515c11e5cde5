"""Take from a device's record the facts on which launch plans depend."""

from __future__ import annotations

from llmperf_common.records import Device, DeviceClass


def device_class_of(device: Device) -> DeviceClass:
    """Return the facts of a device on which launch plans depend."""
    return DeviceClass(
        name=device.device_class,
        compute_units=device.compute_units,
        max_work_group_size=device.max_work_group_size,
        max_work_item_sizes=device.max_work_item_sizes,
        max_allocation_bytes=device.max_allocation_bytes,
        global_memory_bytes=device.global_memory_bytes,
        local_memory_bytes=device.local_memory_bytes,
        plain_work_group_size=device.plain_work_group_size,
        max_constant_buffer_bytes=_constant_limit(device),
    )


def _constant_limit(device: Device) -> int | None:
    """Return the size limit of ``__constant`` buffers; None if all buffers have the same limit.

    Plans of earlier datasets were made without this limit. They keep their hash if the limit is
    None.
    """
    limit_bytes = device.max_constant_buffer_bytes
    if limit_bytes is None or limit_bytes >= device.max_allocation_bytes:
        return None
    return limit_bytes

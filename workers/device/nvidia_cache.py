"""How large an NVIDIA GPU's L2 is, asked of the CUDA driver through ctypes.

NVIDIA's OpenCL reports 4,325,376 bytes of cache on an H200 (132 x 32 KiB, some first-level figure); flushing
twice that would leave the 60 MB L2 warm. The attribute is read without creating a CUDA context.
"""

from __future__ import annotations

import ctypes

_L2_CACHE_SIZE_ATTRIBUTE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_UUID_BYTES = 16


def l2_cache_bytes(device_uuid: str) -> int | None:
    """Return the L2's size of the GPU with this UUID; None without a CUDA driver or such a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, num_bytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    wanted = device_uuid.replace("-", "")
    for index in range(count.value):
        uuid = (ctypes.c_ubyte * _UUID_BYTES)()
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        if cuda.cuDeviceGetUuid(uuid, device) != 0 or bytes(uuid).hex() != wanted:
            continue
        status = cuda.cuDeviceGetAttribute(
            ctypes.byref(num_bytes), _L2_CACHE_SIZE_ATTRIBUTE, device
        )
        return num_bytes.value if status == 0 else None
    return None

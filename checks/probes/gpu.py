"""The GPUs: name, capability, memory, driver, and whether multicast is supported (asked, not used).

The driver is asked first and by itself: with one that is too old for its CUDA, torch says only that there is no GPU.
"""

import ctypes
import os

import _probe

MULTICAST_SUPPORTED = 132  # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED (cuda.h)
VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE (nvml.h)


def probe():
    torch = _probe.import_torch()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    driver, installed = managed()
    if not installed or hidden:
        _probe.import_torch_with_gpu()
    usable = torch.cuda.is_available()
    cuda = ctypes.CDLL("libcuda.so.1")
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return {
        "devices": devices(torch, cuda) if usable else [],
        "installed": installed,
        "driver": driver,
        "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "torch_cuda": torch.version.cuda,
    }


def managed():
    """The driver's version, such as ``580.65.06``, and how many GPUs it has, by NVML; None and 0 without it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, 0
    version, count = ctypes.create_string_buffer(VERSION_BYTES), ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(version, VERSION_BYTES):
        return None, 0
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return version.value.decode(), count.value


def devices(torch, cuda):
    cuda.cuInit(0)
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        multicast = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(multicast), MULTICAST_SUPPORTED, number)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multicast": bool(multicast.value),
            }
        )
    return found


_probe.run("gpu", probe)

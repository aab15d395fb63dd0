"""The GPUs: name, capability, memory, driver, and whether multicast is supported (asked, not used)."""

import ctypes

import _probe

MULTICAST_SUPPORTED = 132  # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED (cuda.h)


def probe():
    torch = _probe.import_torch_with_gpu()
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    devices = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        multicast = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(multicast), MULTICAST_SUPPORTED, number)
        devices.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multicast": bool(multicast.value),
            }
        )
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return {"devices": devices, "driver_cuda": driver, "torch_cuda": torch.version.cuda}


_probe.run("gpu", probe)

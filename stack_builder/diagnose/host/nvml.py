"""Asks the driver about itself and its GPUs. Run as a script, in a process of its own that can be timed out.

NVML is the driver's own management library (nvml.h); a hung driver hangs whoever calls it, and so no other module
loads it. Standard library only. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys

_NAME = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def main() -> None:
    """Print ``{"driver", "cuda", "devices"}``, or ``{"error"}`` with NVML's own words."""
    try:
        answer = _ask(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _ask(nvml: ctypes.CDLL) -> dict[str, object]:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    status = nvml.nvmlInit_v2()
    if status != 0:
        return {"error": nvml.nvmlErrorString(status).decode()}
    text = ctypes.create_string_buffer(_NAME)
    number, count = ctypes.c_int(), ctypes.c_uint()
    answer: dict[str, object] = {}
    if nvml.nvmlSystemGetDriverVersion(text, _NAME) == 0:
        answer["driver"] = text.value.decode()
    if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == 0:
        answer["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        answer["devices"] = [device for index in range(count.value) if (device := _device(nvml, index)) is not None]
    return answer


def _device(nvml: ctypes.CDLL, index: int) -> dict[str, object] | None:
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
        return None
    nvml.nvmlDeviceGetName(handle, name, _NAME)
    known = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return {
        "name": name.value.decode(errors="replace"),
        "capability": f"{major.value}.{minor.value}",
        "memory": memory.total if known else None,
    }


if __name__ == "__main__":
    main()

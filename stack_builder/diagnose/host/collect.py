"""Collects facts about the host. Nothing here judges, imports torch, or fails because something is missing."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stack_builder.diagnose.host import nvml as nvml_script
from stack_builder.diagnose.host.compilers import find_host_compilers, find_nvcc
from stack_builder.diagnose.host.facts import Device, Driver, HostFacts
from stack_builder.diagnose.host.libraries import find_driver_libraries
from stack_builder.diagnose.host.tables import tables

NVML_SECONDS = 10.0

# Variables that decide what is found, compiled or used; nothing else of the environment is read.
_VARIABLES = re.compile(
    r"(?:LD_LIBRARY_PATH|LD_PRELOAD|CC|CXX|NVCC_\w+|CUDA_\w+|NVIDIA_\w+|NCCL_\w+|TORCH_\w+|PYTORCH_\w+|TRITON_\w+"
    r"|FLASHINFER_\w+|SGLANG_\w+|SGL_\w+|NVSHMEM_\w+|CONDA_PREFIX|MAX_JOBS|PYTHONPATH)"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")


def collect_host(
    *,
    gpu: str | None = None,
    site_packages: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> HostFacts:
    """Find out about this host.

    Args:
        gpu: ``sm_120``: stands in for the GPUs of the host, which are then not looked for.
        site_packages: of the target, whose CUDA wheels may bring an nvcc.
        environ: the environment that the target's processes will have.
        root: where ``/proc``, ``/etc`` and ``/usr`` are; another folder in tests.
    """
    missing: dict[str, str] = {}
    driver, found = _driver(root, missing)
    if gpu is not None:
        found = (Device("", capability_of(gpu)),)
        missing.pop("devices", None)
    return HostFacts(
        machine=platform.machine(),
        kernel=platform.release(),
        glibc=_glibc(),
        driver=driver,
        devices=found,
        stand_in=gpu is not None,
        driver_libraries=find_driver_libraries(root, environ),
        nvcc=find_nvcc(root, environ, site_packages),
        host_compiler=find_host_compilers(environ),
        environment={
            name: value
            for name, value in sorted(environ.items())
            if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
        },
        container=_container(root, environ),
        runtimes=_runtimes(environ),
        shm_bytes=_size_of(root / "dev/shm"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        port_range=_port_range(root),
        iommu=_iommu(root),
        missing=missing,
    )


def capability_of(gpu: str) -> str:
    """Give the compute capability of ``sm_120``: ``12.0``."""
    digits = gpu.removeprefix("sm_")
    return f"{digits[:-1]}.{digits[-1]}"


def _driver(root: Path, missing: dict[str, str]) -> tuple[Driver | None, tuple[Device, ...]]:
    module = _kernel_module(root)
    answer: dict[str, Any] = _nvml() if root == Path("/") else {"error": "not asked for another root"}
    error = answer.get("error")
    if error is not None:
        missing["devices"] = f"NVML: {error}"
    if module is None and "driver" not in answer:
        missing["driver"] = "no NVIDIA kernel module is loaded (/proc/driver/nvidia/version)"
        return None, ()
    library = answer.get("driver")
    cuda = answer.get("cuda") or tables().cuda_of_driver(str(module or library))
    devices = answer.get("devices", [])
    found = tuple(Device(item["name"], item["capability"], item["memory"]) for item in devices)
    return Driver(module, library, cuda), found


def _kernel_module(root: Path) -> str | None:
    text = _read(root / "proc/driver/nvidia/version")
    match = _MODULE.search(text) if text else None
    return match[1] if match else None


def _nvml() -> dict[str, Any]:
    command: Sequence[str] = (sys.executable, "-I", nvml_script.__file__)
    try:
        done = subprocess.run(command, capture_output=True, timeout=NVML_SECONDS, check=False)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"the driver did not answer within {NVML_SECONDS:.0f} s"}
    except (OSError, ValueError) as error:
        return {"error": f"could not be asked: {error}"}
    return answer if isinstance(answer, dict) else {"error": "gave no answer"}


def _glibc() -> str | None:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
    return name.removeprefix("glibc ") if name else None


def _container(root: Path, environ: Mapping[str, str]) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else None


def _runtimes(environ: Mapping[str, str]) -> tuple[str, ...]:
    names = ("docker", "podman", "nvidia-container-runtime", "nvidia-ctk")
    return tuple(name for name in names if shutil.which(name, path=environ.get("PATH", os.defpath)))


def _size_of(path: Path) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def _port_range(root: Path) -> tuple[int, int] | None:
    numbers = (_read(root / "proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(n.isdigit() for n in numbers) else None


def _iommu(root: Path) -> bool | None:
    """An IOMMU is in use where the kernel lists one; ``iommu=pt`` leaves peer traffic alone."""
    folder = root / "sys/class/iommu"
    try:
        listed = any(folder.iterdir())
    except OSError:
        return None
    return listed and "iommu=pt" not in (_read(root / "proc/cmdline") or "").split()


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(64 << 10)
    except OSError:
        return None

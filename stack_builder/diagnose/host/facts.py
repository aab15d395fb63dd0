"""What is known about a host. Plain frozen data; every part is optional, and what is missing says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stack_builder.errors import UsageError, refused


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver.

    Attributes:
        kernel_module: version of the loaded kernel module (``/proc/driver/nvidia/version``), None if none is loaded.
        library: version that its user-space library (NVML) reports, None if it could not be asked.
        cuda: CUDA version that it supports, such as ``13.0``.
    """

    kernel_module: str | None
    library: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.

    Attributes:
        name: marketing name; empty where only ``--gpu`` names it.
        capability: compute capability, such as ``12.0``.
        memory: bytes; None where unknown.
    """

    name: str
    capability: str
    memory: int | None = None

    @property
    def architecture(self) -> str:
        """``sm_120`` for 12.0."""
        return f"sm_{self.capability.replace('.', '')}"


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """One ``libcuda.so.1``, in the order in which the loader would find them.

    Attributes:
        path: as the loader would open it.
        via: ``LD_LIBRARY_PATH``, ``ld.so.cache``, or the folder for the default ones.
        version: of the file behind it (``libcuda.so.580.95.05``), None if its name does not say.
        compat: it is a forward-compatibility copy (``…/compat/``).
    """

    path: str
    via: str
    version: str | None
    compat: bool


@dataclass(frozen=True, slots=True)
class Compiler:
    """One compiler, in the order in which builds and JIT compilers look for it.

    Attributes:
        path: where it is, or was looked for.
        via: what led there: ``CUDA_HOME``, ``CUDA_PATH``, ``PATH``, ``/usr/local/cuda``, ``wheel``, ``CXX``.
        version: ``13.0`` for nvcc, ``13.3.0`` for g++; None where it does not exist or does not answer.
    """

    path: str
    via: str
    version: str | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything collected.

    Attributes:
        machine: ``x86_64`` or ``aarch64``.
        kernel: release of the Linux kernel.
        glibc: version of the C library, such as ``2.41``.
        driver: None where no NVIDIA driver was found.
        devices: the GPUs, or the one that ``--gpu`` stands in for.
        stand_in: the devices were named by ``--gpu`` and not found.
        driver_libraries: every ``libcuda.so.1`` on the loader's path.
        nvcc: candidates; the first is the one that a JIT compiler takes.
        host_compiler: candidates for g++; the first is taken.
        environment: variables that matter here; values of secrets are never read.
        container: ``docker``, ``podman``, ``kubernetes`` where the process runs in one.
        runtimes: container tools found: ``docker``, ``podman``, ``nvidia-container-runtime``, ``nvidia-ctk``.
        shm_bytes: size of ``/dev/shm``.
        open_files: soft limit on open files.
        port_range: ``net.ipv4.ip_local_port_range``.
        iommu: whether the kernel runs with an IOMMU in use.
        missing: what could not be found out -> why.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    machine: str
    kernel: str
    glibc: str | None = None
    driver: Driver | None = None
    devices: tuple[Device, ...] = ()
    stand_in: bool = False
    driver_libraries: tuple[DriverLibrary, ...] = ()
    nvcc: tuple[Compiler, ...] = ()
    host_compiler: tuple[Compiler, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    container: str | None = None
    runtimes: tuple[str, ...] = ()
    shm_bytes: int | None = None
    open_files: int | None = None
    port_range: tuple[int, int] | None = None
    iommu: bool | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """JSON-ready, for the facts of a report."""
        return cast("dict[str, object]", asdict(self))

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: object = None) -> HostFacts:
        """Read recorded facts.

        Raises:
            UsageError: not facts of a host.
        """
        try:
            return TypeAdapter(cls).validate_python(dict(body))
        except ValidationError as error:
            raise UsageError(f"not facts of a host: {refused(error)}", where=where) from error

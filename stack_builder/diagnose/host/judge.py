"""Judges recorded facts of a host against what a stack needs. Pure functions; rules in ``checks/rules/host.toml``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.host.facts import Compiler, DriverLibrary, HostFacts
from stack_builder.diagnose.host.tables import older, tables, version
from stack_builder.report import Finding, Skipped

_CONSUMER = ("GeForce", "RTX", "TITAN", "Quadro")  # no forward compatibility; NVIDIA, CUDA Compatibility, 2.1


@dataclass(frozen=True, slots=True)
class HostNeed:
    """What the target needs of its host.

    Attributes:
        cuda: the CUDA version that torch was built for, such as ``13.0``; None where the target has no CUDA torch.
        compiles: whether kernels are compiled on the host (FlashInfer without a complete jit-cache, DeepGEMM, tvm-ffi).
        min_driver: a driver that the stack asks for beyond what its CUDA version does.
    """

    cuda: str | None
    compiles: bool = True
    min_driver: str | None = None


def judge_host(facts: HostFacts, need: HostNeed) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Apply every HOST rule.

    Returns:
        findings, and the rules that could not run with the reason.
    """
    findings = [
        *_driver_age(facts, need),
        *_driver_files(facts),
        *_nvcc(facts, need),
        *_host_compiler(facts, need),
        *_loader_variables(facts),
        *_settings(facts),
    ]
    return tuple(findings), tuple(_skipped(facts, need))


def _driver_age(facts: HostFacts, need: HostNeed) -> Iterator[Finding]:
    found = _driver_version(facts)
    if found is None or need.cuda is None:
        return
    wanted = _wanted_driver(need)
    if wanted is None or not older(found, wanted):
        return
    compat = _taken(facts)
    if compat is not None and compat.compat and not older(compat.version, wanted) and _data_centre(facts):
        return
    yield catalogue.finding(
        "HOST001",
        detail=f"Driver {found} (CUDA {tables().cuda_of_driver(found)}) runs here; CUDA {need.cuda} needs {wanted}.",
        evidence={"driver": found, "needed": wanted, "cuda": need.cuda},
        fix=(f"update the driver to {wanted} or later", f"or use a stack for CUDA {tables().cuda_of_driver(found)}"),
    )
    if _data_centre(facts) and not any(library.compat for library in facts.driver_libraries):
        yield catalogue.finding(
            "HOST005", detail=f"The GPU would take part in it, but no compat library for CUDA {need.cuda} is installed."
        )


def _driver_files(facts: HostFacts) -> Iterator[Finding]:
    driver, taken = facts.driver, _taken(facts)
    if driver is None:
        return
    module = driver.kernel_module
    if module is not None and taken is None and "devices" in facts.missing:
        yield catalogue.finding(
            "HOST002",
            detail=f"The kernel module {module} is loaded, but no libcuda.so.1 is on the loader's path.",
            evidence={"kernel_module": module, "nvml": facts.missing["devices"]},
        )
    if module is None or taken is None or taken.version is None or taken.version == module:
        return
    evidence = {"kernel_module": module, "library": taken.version, "path": taken.path, "via": taken.via}
    if not taken.compat:
        yield catalogue.finding("HOST003", object=taken.path, detail=_skew(module, taken), evidence=evidence)
    elif older(taken.version, module):
        yield catalogue.finding(
            "HOST004",
            object=taken.path,
            detail=f"{_skew(module, taken)} Compat libraries help only where the host's driver is the older one.",
            evidence=evidence,
        )


def _skew(module: str, taken: DriverLibrary) -> str:
    return f"The loader takes {taken.path} ({taken.version}, by {taken.via}); the kernel module is {module}."


def _nvcc(facts: HostFacts, need: HostNeed) -> Iterator[Finding]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = facts.environment.get(name)
        if value and (":" in value or not any(c.via == name and c.version for c in facts.nvcc)):
            what = "is composed like a search path" if ":" in value else "holds no working bin/nvcc"
            yield catalogue.finding("HOST008", object=name, detail=f"{name}={value} {what}.", evidence={name: value})
    if need.cuda is None or not need.compiles:
        return
    taken = facts.nvcc[0] if facts.nvcc else None
    if taken is None:
        yield catalogue.finding(
            "HOST007", evidence={"looked_at": ["CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda"]}
        )
        return
    if taken.version is None:
        return
    for gpu in sorted({device.architecture for device in facts.devices}):
        wanted = tables().nvcc_for_gpu.get(gpu)
        if wanted is not None and older(taken.version, wanted):
            yield catalogue.finding(
                "HOST006",
                object=taken.path,
                detail=f"A JIT compiler takes nvcc {taken.version} (by {taken.via}); {gpu} needs {wanted}."
                + _better(facts, wanted),
                evidence={"nvcc": taken.version, "via": taken.via, "gpu": gpu, "needed": wanted},
            )
    if taken.version.split(".")[0] != need.cuda.split(".")[0]:
        yield catalogue.finding(
            "HOST012",
            object=taken.path,
            detail=f"A JIT compiler takes nvcc {taken.version} (by {taken.via}); torch was built for CUDA {need.cuda}.",
            evidence={"nvcc": taken.version, "via": taken.via, "torch_cuda": need.cuda},
        )


def _better(facts: HostFacts, wanted: str) -> str:
    better = next((c for c in facts.nvcc[1:] if c.version is not None and not older(c.version, wanted)), None)
    return "" if better is None else f" {better.path} has {better.version}: set CUDA_HOME to its folder."


def _host_compiler(facts: HostFacts, need: HostNeed) -> Iterator[Finding]:
    if need.cuda is None or not need.compiles:
        return
    taken: Compiler | None = facts.host_compiler[0] if facts.host_compiler else None
    if taken is None or taken.version is None:
        yield catalogue.finding("HOST011", detail="No g++ is on PATH, and CXX names none.")
        return
    nvcc = facts.nvcc[0].version if facts.nvcc else None
    newest = tables().gcc_for_nvcc.get(nvcc or "")
    found = version(taken.version)
    if newest is not None and found is not None and found.major > newest:
        yield catalogue.finding(
            "HOST011",
            object=taken.path,
            detail=f"g++ {taken.version} is newer than nvcc {nvcc} accepts (up to {newest}).",
            evidence={"compiler": taken.version, "nvcc": nvcc, "newest": newest},
        )


def _loader_variables(facts: HostFacts) -> Iterator[Finding]:
    folders = [folder for folder in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    suspects = [folder for folder in folders if _suspect(folder)]
    if suspects:
        yield catalogue.finding(
            "HOST009",
            object="LD_LIBRARY_PATH",
            detail=f"It comes before the wheels' own libraries: {', '.join(suspects)}.",
            evidence={"folders": suspects},
        )
    preload = facts.environment.get("LD_PRELOAD")
    if preload:
        yield catalogue.finding("HOST010", object="LD_PRELOAD", detail=f"LD_PRELOAD={preload}.")


def _suspect(folder: str) -> bool:
    """Folders that hold libraries which the stack brings itself: a toolkit's, conda's, hand-built NCCL's."""
    parts = PurePosixPath(folder).parts
    if "stubs" in parts or "compat" in parts:
        return True
    return any(part.startswith(("cuda", "nccl", "nvshmem", "cudnn")) or "conda" in part for part in parts)


def _settings(facts: HostFacts) -> Iterator[Finding]:
    visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "none", "NoDevFiles"):
        yield catalogue.finding("HOST015", object="CUDA_VISIBLE_DEVICES", detail=f"CUDA_VISIBLE_DEVICES='{visible}'.")
    if len(facts.devices) < 2:
        return
    if facts.shm_bytes is not None and facts.shm_bytes < tables().needs.shm_bytes:
        yield catalogue.finding(
            "HOST013",
            object="/dev/shm",  # noqa: S108 - the place that is judged
            detail=f"It holds {facts.shm_bytes >> 20} MiB, for {len(facts.devices)} GPUs.",
            evidence={"bytes": facts.shm_bytes, "needed": tables().needs.shm_bytes},
        )
    if facts.iommu:
        yield catalogue.finding(
            "HOST014", detail=f"{len(facts.devices)} GPUs, and the kernel translates their traffic."
        )


def _skipped(facts: HostFacts, need: HostNeed) -> Iterator[Skipped]:
    if need.cuda is None:
        for rule in ("HOST001", "HOST007", "HOST012"):
            yield catalogue.skipped(rule, "the target has no CUDA build of torch to compare with")
    elif facts.driver is None:
        for rule in ("HOST001", "HOST003", "HOST004"):
            yield catalogue.skipped(rule, facts.missing.get("driver", "no driver was found"))
    elif _wanted_driver(need) is None:
        yield catalogue.skipped("HOST001", f"no table says which driver CUDA {need.cuda} needs")
    if need.cuda is not None and need.compiles and not facts.devices:
        yield catalogue.skipped("HOST006", "no GPU is visible; name one with --gpu sm_120")


def _wanted_driver(need: HostNeed) -> str | None:
    by_cuda = tables().driver_for(need.cuda) if need.cuda else None
    if by_cuda is None or older(by_cuda, need.min_driver):
        return need.min_driver
    return by_cuda


def _driver_version(facts: HostFacts) -> str | None:
    return None if facts.driver is None else facts.driver.kernel_module or facts.driver.library


def _taken(facts: HostFacts) -> DriverLibrary | None:
    return next((library for library in facts.driver_libraries if library.via != "not searched"), None)


def _data_centre(facts: HostFacts) -> bool:
    named = [device.name for device in facts.devices if device.name]
    return bool(named) and not any(mark in name for name in named for mark in _CONSUMER)

"""What a probe prints: one JSON object on its last line, of the shape that ``stackb schema probe`` gives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stack_builder import jsontext
from stack_builder.report.model import Json

SCHEMA_VERSION = 1


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Result(_Strict):
    schema_version: Literal[1]
    cause: str | None = Field(None, description="name of what is wrong, where it has one")


class Unanswered(_Result):
    """The probed thing does not work, or there is nothing here to probe."""

    probe: str
    status: Literal["failed", "skipped"]
    reason: str = Field(description="one sentence for people")
    facts: dict[str, Json] = Field(max_length=0)


class _Answered(_Result):
    status: Literal["ok"]
    reason: None


class Latency(_Strict):
    """Percentiles in microseconds."""

    p10: float
    p50: float
    p90: float
    p99: float


class AllReduceFacts(_Strict):
    """An all-reduce over all GPUs."""

    bytes: int
    world_size: int
    nccl: str
    repeats: int
    microseconds: Latency


class Device(_Strict):
    """A GPU."""

    name: str
    capability: str = Field(pattern=r"^\d+\.\d+$")
    memory_bytes: int
    multicast: bool = Field(description="whether the device supports it; it was not used")


class GpuFacts(_Strict):
    """The driver and its GPUs."""

    devices: list[Device] = Field(description="as torch sees them; empty where torch cannot use what is installed")
    installed: int = Field(description="GPUs that the driver has, by NVML; 0 without NVML")
    driver: str | None = Field(description="version of the kernel's driver, by NVML")
    driver_cuda: str = Field(description="the newest CUDA version that libcuda speaks")
    torch_cuda: str | None


class ImportFacts(_Strict):
    """A package that was imported."""

    file: str
    version: str | None


class KernelFacts(_Strict):
    """One kernel of each library against the same written out in float32."""

    largest_relative_difference: dict[str, float]


class NvccFacts(_Strict):
    """The tools of FlashInfer's JIT, and what they built."""

    nvcc: str
    version: str | None
    ninja: str
    ninja_version: str
    architecture: str
    object_bytes: int = Field(gt=0)


class NvrtcFacts(_Strict):
    """What NVRTC compiled, by architecture."""

    version: str
    torch_loaded: bool
    mapped: list[str]
    cubin_bytes: dict[str, Annotated[int, Field(gt=0)]]


class Pair(_Strict):
    """Copies from one GPU to another."""

    model_config = ConfigDict(populate_by_name=True)

    source: int = Field(alias="from")
    to: int
    peer_access: bool
    intact: bool
    gigabytes_per_second: float


class PeerFacts(_Strict):
    """Copies between all pairs of GPUs."""

    pairs: list[Pair]
    copy_bytes: int


class TorchFacts(_Strict):
    """How torch was built, and the libraries that are mapped once it is imported."""

    version: str
    cuda: str | None
    git: str | None
    cxx11_abi: bool
    architectures: list[str]
    mapped: dict[str, list[str]]


class AllReduce(_Answered):
    """allreduce.py."""

    probe: Literal["allreduce"]
    facts: AllReduceFacts


class Gpu(_Answered):
    """gpu.py."""

    probe: Literal["gpu"]
    facts: GpuFacts


class Import(_Answered):
    """import_flashinfer.py and import_sgl_kernel.py."""

    probe: Literal["import_flashinfer", "import_sgl_kernel"]
    facts: ImportFacts


class Kernels(_Answered):
    """kernels.py."""

    probe: Literal["kernels"]
    facts: KernelFacts


class Nvcc(_Answered):
    """nvcc.py."""

    probe: Literal["nvcc"]
    facts: NvccFacts


class Nvrtc(_Answered):
    """nvrtc.py."""

    probe: Literal["nvrtc"]
    facts: NvrtcFacts


class PeerToPeer(_Answered):
    """peer_to_peer.py."""

    probe: Literal["peer_to_peer"]
    facts: PeerFacts


class TorchBuild(_Answered):
    """torch_build.py."""

    probe: Literal["torch_build"]
    facts: TorchFacts


Answered = Annotated[
    AllReduce | Gpu | Import | Kernels | Nvcc | Nvrtc | PeerToPeer | TorchBuild, Field(discriminator="probe")
]
Result = Unanswered | Answered
ADAPTER: TypeAdapter[Unanswered | Answered] = TypeAdapter(Result)
_ANSWERED: TypeAdapter[Answered] = TypeAdapter(Answered)


def read(output: str, probe: str) -> Unanswered | Answered:
    """Read a probe's output: its last line that is an object; libraries may have printed around it.

    Raises:
        ValueError: there is none, it is of another shape, or another probe's; the text says where.
    """
    lines = (line for line in reversed(output.splitlines()) if line.startswith("{"))
    said = jsontext.loads(next(lines, ""))
    adapter = _ANSWERED if isinstance(said, dict) and said.get("status") == "ok" else TypeAdapter(Unanswered)
    result: Unanswered | Answered = adapter.validate_python(said)
    if result.probe != probe:
        raise ValueError(f"the result of '{result.probe[:100]}'")
    return result

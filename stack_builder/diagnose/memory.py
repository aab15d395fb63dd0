"""Will the weights fit? An estimate from file sizes, before anything is loaded.

SGLang gives ``--mem-fraction-static`` of each GPU's memory to weights and KV cache together
(``model_executor/model_runner.py``, ``profile_max_num_token``); what remains is for activations and CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.report import Finding

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What is known before the start.

    Attributes:
        weights: bytes of weight files of target and draft.
        ranks: GPUs that share the target (``--tp-size``).
        per_gpu: bytes of one GPU's memory.
        fraction: ``--mem-fraction-static``; None where SGLang chooses it.
    """

    weights: int
    ranks: int
    per_gpu: int
    fraction: float | None


def weight_bytes(folder: Path) -> int:
    """Sum of the sizes of a model folder's weight files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def judge_memory(facts: MemoryFacts) -> tuple[Finding, ...]:
    """A finding where the weights alone exceed what each GPU will give them."""
    share = 1.0 if facts.fraction is None else facts.fraction
    needed = facts.weights / max(facts.ranks, 1)
    budget = facts.per_gpu * share
    if needed < budget:
        return ()
    detail = (
        f"weights take {needed / _GIB:.1f} GiB on each of {facts.ranks} GPUs; "
        f"{budget / _GIB:.1f} GiB are theirs ({share:.2f} of {facts.per_gpu / _GIB:.1f} GiB), KV cache included"
    )
    return (catalogue.finding("RUN010", detail=detail, object="--mem-fraction-static"),)


def judge_ranks(ranks: int, gpus: int) -> tuple[Finding, ...]:
    """A finding where a node has fewer GPUs than ranks; each rank takes one."""
    if ranks <= gpus:
        return ()
    detail = f"{ranks} ranks need a GPU each; the server will see {gpus}."
    return (catalogue.finding("RUN014", detail=detail, object="--tp-size"),)

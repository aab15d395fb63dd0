"""Whether the weights fit into the GPUs, and whether there are as many GPUs as ranks."""

from __future__ import annotations

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.memory import MemoryFacts, judge_memory, judge_ranks, weight_bytes
from stack_builder.serve.place import Image
from stack_builder.serve.preflight.launch import Launch, Said
from stack_builder.sglang.argv import value_of


def check(launch: Launch) -> Said:
    """Compare sizes of weight files with the memory of the GPUs, and ranks with their number."""
    gpus = _gpus(launch)
    if not gpus:
        none = isinstance(launch.place, Image) and launch.place.gpus == "none"
        reason = "the container gets no GPU (--gpus none)" if none else "no GPU is visible here"
        return Said(skipped=tuple(catalogue.skipped(rule, reason) for rule in ("RUN010", "RUN014")))
    findings = judge_ranks(launch.ranks, gpus)
    weights = sum(weight_bytes(folder) for folder in launch.model_folders)
    per_gpu = launch.host.devices[0].memory if launch.host.devices else None
    if not weights or per_gpu is None:
        reason = "the model is no folder here" if not launch.model_folders else "no size of weights or GPU is known"
        return Said(findings, (catalogue.skipped("RUN010", reason),))
    fraction = _fraction(value_of(launch.plan.server_arguments, "--mem-fraction-static"))
    return Said((*findings, *judge_memory(MemoryFacts(weights, launch.ranks, per_gpu, fraction))))


def _gpus(launch: Launch) -> int:
    """How many the server will see."""
    if isinstance(launch.place, Image) and launch.place.gpus != "all":
        return 0 if launch.place.gpus == "none" else len(launch.place.gpus.split(","))
    return len(launch.host.devices)


def _fraction(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None

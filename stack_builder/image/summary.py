"""What `stackb build` says at its end."""

from __future__ import annotations

from collections.abc import Iterable

from stack_builder.image.build import Built, Forecast
from stack_builder.image.output import Output
from stack_builder.progress import amount_text
from stack_builder.stack.receipt import SAME_BYTES, Receipt

_SHOWN = ("torch", "triton", "sglang", "sglang-kernel", "sgl-kernel", "flashinfer-python", "nvidia-cuda-runtime",
          "nvidia-cuda-nvcc", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "transformers")  # fmt: skip


def built_text(built: Built, place: str) -> str:
    """Digest, stack, layers, what was checked, where the image is."""
    receipt = built.receipt
    lines = [
        f"image   {receipt.manifest_digest}",
        f"config  {receipt.config_digest} (the image ID of Docker's classic store)",
        "",
        f"stack   {receipt.stack} for {receipt.gpu}, CPython {receipt.python}, CUDA {receipt.cuda}",
        *(f"        {name} {version}" for name, version in _main_wheels(receipt)),
        f"        and {len(receipt.wheels) - len(list(_main_wheels(receipt)))} more; lock {receipt.lock_sha256[:12]}",
        f"base    {_base(receipt)}",
        "",
        *(_layer_lines(built)),
        "",
        *(f"checked {line}" for line in _checks(built)),
        "",
        place,
    ]
    return "\n".join(lines) + "\n"


def forecast_text(plan: Forecast, goal: Output) -> str:
    """The steps of a build that was only asked about."""
    size = amount_text(plan.fetch_bytes, "bytes")
    lines = [
        f"fetch    {plan.fetch} wheels, {size}" if plan.fetch else "fetch    nothing: all wheels are in the store",
        f"base     {plan.base}",
        f"write    {'' if plan.exact else 'up to '}{len(plan.write)} layers of wheels",
        *(f"         {title}" for title in plan.write),
        f"reuse    {plan.reuse} layers of wheels",
        f"output   {goal.kind} {goal.name}",
    ]
    return "\n".join(lines) + "\n"


def _main_wheels(receipt: Receipt) -> Iterable[tuple[str, str]]:
    versions = {wheel.name: wheel.version for wheel in receipt.wheels}
    return ((name, versions[name]) for name in _SHOWN if name in versions)


def _base(receipt: Receipt) -> str:
    base = receipt.base
    pinned = f", {len(base.packages)} packages by hash" if base.packages else ""
    again = f"; pinned anew: {base.relocked}" if base.relocked else ""
    return f"{base.source}{pinned} ({base.identity.removeprefix('sha256:')[:12]}){again}"


def _layer_lines(built: Built) -> Iterable[str]:
    layers = built.receipt.layers
    total = amount_text(sum(layer.size for layer in layers), "bytes")
    yield f"layers  {len(layers)}, {total}; {len(built.written)} written, the others reused"
    for layer in layers:
        mark = "+" if layer.title in built.written else " "
        yield f"      {mark} {layer.digest[7:19]}  {amount_text(layer.size, 'bytes'):>9}  {layer.title}"


def _checks(built: Built) -> Iterable[str]:
    receipt = built.receipt
    yield f"{len(receipt.wheels)} wheels against the lock, {built.files:,} files against their RECORD, size and CRC"
    for decision in receipt.decisions:
        said = "the same bytes" if decision.reason == SAME_BYTES else f"{decision.winner}'s: {decision.reason}"
        yield f"{decision.paths} paths of {' and '.join(decision.packages)} hold {said}"
    if receipt.base.source.startswith("dockerfile:"):
        yield "NOT bit for bit: commands made the base (--engine docker)"
    for patch in receipt.patches:
        yield f"patch {patch.id} ({patch.sha256[:12]}) applied to the files it was made for"
    if not receipt.bytecode:
        yield "no bytecode and no linker cache: --no-bytecode was given"

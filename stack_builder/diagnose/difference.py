"""What changes from one stack to another: wheels, CUDA, and what its SGLang takes, needs and does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.contract import Contract
from stack_builder.sglang.gates import readings
from stack_builder.sglang.gates.table import GateTable
from stack_builder.sglang.options import SUPPRESS, Option, OptionTable
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.spec import StackSpec


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs.

    Attributes:
        what: its name: a distribution, an option, an architecture, a feature on a GPU.
        before: in the first stack; None where it is not there.
        after: in the second; None where it is not there.
        note: what it means, or what to do.
    """

    what: str
    before: str | None
    after: str | None
    note: str = ""


def platforms(before: StackSpec, after: StackSpec) -> Iterator[Change]:
    """Python, CUDA, driver and GPUs."""
    for name in ("python", "platform", "cuda", "min_driver", "gpu"):
        old, new = (getattr(spec.stack, name) for spec in (before, after))
        if old != new:
            yield Change(name.replace("_", " "), _text(old), _text(new))


def wheels(before: Lock, after: Lock) -> Iterator[Change]:
    """Distributions added, removed or of another version; and files of one version with other bytes."""
    had, has = ({artifact.name: artifact for artifact in lock.artifacts} for lock in (before, after))
    for name in sorted({*had, *has}):
        old, new = had.get(name), has.get(name)
        if old is None or new is None or old.version != new.version:
            yield Change(name, _version(old), _version(new), _cuda_change(old, new))
        elif old.filename == new.filename and old.sha256 != new.sha256:
            yield Change(name, _version(old), _version(new), "same file name, other bytes")


def options(before: OptionTable, after: OptionTable) -> Iterator[Change]:
    """Options gone, new, newly deprecated, or with another default or other choices."""
    for name in sorted({*before.names, *after.names}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            kept = old or new
            assert kept is not None
            yield Change(name, _option(old), _option(new), "" if new else _successor(kept, after))
            continue
        if new.deprecated and not old.deprecated:
            yield Change(name, "usual", "deprecated", f"use {new.replacement}" if new.replacement else "")
        if old.default != new.default and SUPPRESS not in (old.default, new.default):
            yield Change(name, f"default {old.default!r}", f"default {new.default!r}")
        gone = [str(c) for c in old.choices or () if new.choices is not None and c not in new.choices]
        if gone:
            yield Change(name, f"takes {', '.join(gone)}", "does not")


def contract(before: Contract, after: Contract) -> Iterator[Change]:
    """Attributes that EAGLE-3 asks for, and architectures that gained or lost them."""
    asked = [{f"{r.role.value}.{r.attribute}": _needed(r.required) for r in c.requirements} for c in (before, after)]
    for name in sorted({*asked[0], *asked[1]}):
        old, new = asked[0].get(name), asked[1].get(name)
        if old != new:
            yield Change(name, old, new)
    had, has = set(before.satisfying(Role.TARGET)), set(after.satisfying(Role.TARGET))
    for name in sorted(had ^ has):
        known = name in (after if name in had else before).registry.architectures
        yield Change(
            name,
            "can be a target" if name in had else "lacks hooks" if known else None,
            "can be a target" if name in has else "lacks hooks" if known else None,
        )


def gates(before: GateTable, after: GateTable, *, gpus: Iterable[str]) -> Iterator[Change]:
    """Features with another outcome on some GPU."""
    for gpu in gpus:
        for name, feature in readings.load().items():
            old, new = before.gate(name, gpu), after.gate(name, gpu)
            if old.state is not new.state:
                yield Change(f"{feature.title} on {gpu}", old.state.value, new.state.value, new.why)


def symbols(before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]]) -> Iterator[Change]:
    """Exported symbols gained and lost, per library."""
    for name in sorted({*before, *after}):
        old, new = before.get(name, frozenset()), after.get(name, frozenset())
        if old != new:
            note = f"{len(new - old)} gained, {len(old - new)} lost"
            yield Change(name, f"{len(old)} symbols", f"{len(new)} symbols", note)


def _version(artifact: Artifact | None) -> str | None:
    return None if artifact is None else artifact.version


def _cuda_change(old: Artifact | None, new: Artifact | None) -> str:
    majors = [a.cuda_majors if a is not None else () for a in (old, new)]
    if not all(majors) or majors[0] == majors[1]:
        return ""
    return f"CUDA {' and '.join(map(str, majors[0]))} to {' and '.join(map(str, majors[1]))}"


def _option(option: Option | None) -> str | None:
    return None if option is None else "deprecated" if option.deprecated else "there"


def _successor(gone: Option, after: OptionTable) -> str:
    """What a removed option said to use, or what another spelling of it is now."""
    if gone.replacement:
        return f"use {gone.replacement}"
    other = next((name for name in gone.names if after.get(name) is not None), None)
    return f"use {other}" if other else ""


def _needed(required: bool) -> str:
    return "required" if required else "optional"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

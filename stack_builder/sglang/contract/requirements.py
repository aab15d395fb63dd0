"""What EAGLE-3 needs of its two models, from all call sites of a release together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stack_builder.sglang.contract.callsites import FileUses, Handed, Role, Typed, Use

_ROUNDS = 4  # how many functions a model is handed on through

# What torch.nn.Module gives every model (its class documentation).
_EVERY_MODULE = frozenset(
    {"apply", "buffers", "children", "compile", "cpu", "cuda", "double", "eval", "float", "forward", "get_parameter"}
    | {"get_submodule", "half", "load_state_dict", "modules", "named_buffers", "named_children", "named_modules"}
    | {"named_parameters", "parameters", "register_buffer", "register_forward_hook", "register_forward_pre_hook"}
    | {"register_module", "register_parameter", "requires_grad_", "state_dict", "to", "train", "training", "type"}
    | {"zero_grad"}
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One attribute that a model must have, or may.

    Attributes:
        role: ``target`` or ``draft``.
        attribute: its name.
        required: some site asks without a guard.
        sites: ``path:line``, sorted; those that make it required first.
    """

    role: Role
    attribute: str
    required: bool
    sites: tuple[str, ...]


def link(files: Iterable[FileUses]) -> tuple[Requirement, ...]:
    """Join the uses of all files into requirements of EAGLE-3, sorted by role and attribute.

    ``forward`` is added for both roles: every model has to run, whatever else is asked.
    """
    files = list(files)
    callers = _callers(files)
    sites: dict[tuple[Role, str], list[Use]] = {}
    for use in (use for file in files for use in file.uses):
        for concrete in _resolved(use, callers):
            role = Role.TARGET if concrete.model.role is Role.ANY else concrete.model.role
            if concrete.eagle and not _inherited(use.attribute):
                sites.setdefault((role, use.attribute), []).append(use)
    found = [_requirement(role, name, uses) for (role, name), uses in sites.items()]
    found += [Requirement(role, "forward", True, ()) for role in (Role.DRAFT, Role.TARGET)]
    return tuple(sorted(found, key=lambda r: (r.role, r.attribute)))


def _inherited(attribute: str) -> bool:
    return attribute in _EVERY_MODULE or attribute.startswith("__")


def _requirement(role: Role, name: str, uses: Sequence[Use]) -> Requirement:
    ordered = sorted(uses, key=lambda u: (u.optional, u.path, u.line))
    sites = tuple(dict.fromkeys(f"{u.path}:{u.line}" for u in ordered))
    return Requirement(role, name, any(not u.optional for u in uses), sites)


def _callers(files: Sequence[FileUses]) -> dict[tuple[str, str], set[tuple[Role, bool]]]:
    """For each parameter, the models that callers hand to it: ``(role, only with EAGLE)``; to a fixpoint."""
    names = {name: parameters for file in files for name, parameters in file.parameters.items()}
    handed = [h for file in files for h in file.handed if h.model.is_model]
    found: dict[tuple[str, str], set[tuple[Role, bool]]] = {}
    for _ in range(_ROUNDS):
        before = sum(map(len, found.values()))
        for item in handed:
            parameter = _parameter(item, names)
            if parameter is not None:
                known = [(item.model.role, item.eagle)]
                if item.model.parameter is not None:
                    known = [(r, e or item.eagle) for r, e in found.get(item.model.parameter, ())]
                found.setdefault((item.function, parameter), set()).update(known)
        if sum(map(len, found.values())) == before:
            break
    return found


def _parameter(item: Handed, names: dict[str, tuple[str, ...]]) -> str | None:
    known = names.get(item.function, ())
    if isinstance(item.parameter, int):
        return known[item.parameter] if item.parameter < len(known) else None
    return item.parameter if item.parameter in known else None


def _resolved(use: Use, callers: dict[tuple[str, str], set[tuple[Role, bool]]]) -> list[Use]:
    if use.model.parameter is None:
        return [use]
    return [
        replace(use, model=Typed(True, role), eagle=use.eagle or eagle)
        for role, eagle in sorted(callers.get(use.model.parameter, ()))
    ]

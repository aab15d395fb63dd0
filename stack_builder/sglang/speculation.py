"""What a release does with speculation settings by itself, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from stack_builder.sglang.constants import UNKNOWN, Evaluator, dotted
from stack_builder.sglang.source import SERVER_ARGS, SourceTree

HOOK = "sglang/srt/arg_groups/speculative_hook.py"
ADAPTIVE = "sglang/srt/speculative/adaptive_spec_params.py"
ENVIRON = "sglang/srt/environ.py"
SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"


@dataclass(frozen=True, slots=True)
class Speculation:
    """Automatic values and limits.

    Attributes:
        request_cap: what ``--max-running-requests`` becomes with EAGLE where it is not given; None for no cap.
        tree_backends: attention backends that take a top-k above 1 together with a page size above 1.
        adaptive_rows: batch size -> candidate numbers of steps, the default of ``--speculative-adaptive``; empty where
            the release keys them by nothing.
        adaptive_excludes: destinations of options that switch adaptive speculation off when they are on.
        adaptive_needs_no_overlap: adaptive speculation also needs ``--disable-overlap-schedule``.
        overlap_variable: default of ``SGLANG_ENABLE_SPEC_V2``; None where the release has none.
        environment: names of the variables that ``environ.py`` defines, sorted.
    """

    request_cap: int | None
    tree_backends: tuple[str, ...]
    adaptive_rows: dict[str, tuple[int, ...]]
    adaptive_excludes: tuple[str, ...]
    adaptive_needs_no_overlap: bool
    overlap_variable: bool | None
    environment: tuple[str, ...]


def read(tree: SourceTree) -> Speculation:
    """Read a release."""
    path = HOOK if tree.has(HOOK) else SERVER_ARGS
    evaluator = Evaluator(tree)
    eagle = [node for node in _functions(tree, path) if _handles_eagle(node)]
    variables = dict(_environment(tree))
    asked = list(_adaptive_conditions(tree))
    rows = evaluator.name(ADAPTIVE, "DEFAULT_ADAPTIVE_CONFIG") if tree.has(ADAPTIVE) else UNKNOWN
    return Speculation(
        request_cap=next((cap for node in eagle for cap in _caps(node)), None),
        tree_backends=next((found for node in eagle for found in _tree_backends(node, evaluator, path)), ()),
        adaptive_rows=_rows(rows),
        adaptive_excludes=tuple(sorted({name for name in asked if name.startswith("enable_")})),
        adaptive_needs_no_overlap="disable_overlap_schedule" in asked,
        overlap_variable=variables.get(SPEC_V2),
        environment=tuple(sorted(variables)),
    )


def _functions(tree: SourceTree, path: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree.module(path)) if isinstance(node, ast.FunctionDef))


def _handles_eagle(node: ast.FunctionDef) -> bool:
    return node.name in ("_handle_speculative_decoding", "_handle_eagle_family", "handle_speculative_decoding")


def _caps(function: ast.FunctionDef) -> Iterator[int]:
    """``max_running_requests = 48``, as a statement or as a keyword."""
    for node in ast.walk(function):
        name = node.arg if isinstance(node, ast.keyword) else ""
        if isinstance(node, ast.Assign):
            name = dotted(node.targets[0]).rsplit(".", 1)[-1]
        value = getattr(node, "value", None)
        if name == "max_running_requests" and isinstance(value, ast.Constant) and isinstance(value.value, int):
            yield value.value


def _tree_backends(function: ast.FunctionDef, evaluator: Evaluator, path: str) -> Iterator[tuple[str, ...]]:
    """``… and page_size > 1 and attention_backend not in (…)``."""
    local: dict[str, object] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            local[node.targets[0].id] = evaluator.evaluate(node.value, path, local)
    for node in ast.walk(function):
        if not isinstance(node, ast.BoolOp) or "page_size" not in ast.dump(node):
            continue
        for part in node.values:
            if isinstance(part, ast.Compare) and dotted(part.left).endswith("attention_backend"):
                found = evaluator.evaluate(part.comparators[0], path, local)
                if isinstance(part.ops[0], ast.NotIn) and isinstance(found, list | tuple):
                    yield tuple(str(name) for name in found)


def _environment(tree: SourceTree) -> Iterator[tuple[str, bool | None]]:
    """``NAME = EnvBool(False)`` in the body of a class of ``environ.py``."""
    for node in tree.module(ENVIRON).body if tree.has(ENVIRON) else ():
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                arguments = statement.value.args if isinstance(statement.value, ast.Call) else []
                first = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else None
                yield statement.targets[0].id, first if isinstance(first, bool) else None


def _adaptive_conditions(tree: SourceTree) -> Iterator[str]:
    """Names that the conditions of ``adaptive_unsupported_reason`` test."""
    for function in _functions(tree, ADAPTIVE) if tree.has(ADAPTIVE) else ():
        if function.name == "adaptive_unsupported_reason":
            for node in ast.walk(function):
                if isinstance(node, ast.If):
                    yield from (n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute))
                    if "attn_dp_enabled_of" in ast.dump(node.test):
                        yield "enable_dp_attention"


def _rows(value: object) -> dict[str, tuple[int, ...]]:
    rows = {}
    for key, entry in value.items() if isinstance(value, dict) else ():
        steps = entry.get("candidate_steps") if isinstance(entry, dict) else None
        if isinstance(key, str) and key.isdigit() and isinstance(steps, list):
            rows[key] = tuple(step for step in steps if isinstance(step, int))
    return rows

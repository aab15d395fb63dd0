"""What goes wrong with EAGLE-3 in a release although every attribute is there: read from its source."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from stack_builder.sglang.constants import dotted
from stack_builder.sglang.source import SourceTree

LLAMA_DRAFT = "sglang/srt/models/llama_eagle3.py"
_RUNNERS = "sglang/srt/model_executor"
_SETTER = "set_eagle3_layers_to_capture"


@dataclass(frozen=True, slots=True)
class Traps:
    """Limits of a release.

    Attributes:
        default_layers: sites that set the layers to capture without the draft's ids: CUDA graphs captured after them
            read SGLang's default layers, whatever the draft was trained on.
        one_layer: site that refuses a draft of more than one layer, else None.
        three_states: site that fixes the number of auxiliary states at three, else None.
    """

    default_layers: tuple[str, ...]
    one_layer: str | None
    three_states: str | None


def read(tree: SourceTree) -> Traps:
    """Look for the traps in a release."""
    default_layers = [
        f"{path}:{node.lineno}"
        for path in tree.paths(_RUNNERS)
        if _SETTER.encode() in tree.read(path)
        for node in ast.walk(tree.module(path))
        if isinstance(node, ast.Call) and dotted(node.func).endswith(_SETTER) and not (node.args or node.keywords)
    ]
    draft = list(ast.walk(tree.module(LLAMA_DRAFT))) if tree.has(LLAMA_DRAFT) else []
    return Traps(
        default_layers=tuple(default_layers),
        one_layer=_first(draft, _refuses_layers),
        three_states=_first(draft, _is_times_three),
    )


def _first(nodes: list[ast.AST], wanted: Callable[[ast.AST], bool]) -> str | None:
    return next((f"{LLAMA_DRAFT}:{getattr(node, 'lineno', 0)}" for node in nodes if wanted(node)), None)


def _refuses_layers(node: ast.AST) -> bool:
    """``if self.config.num_hidden_layers != 1: raise …``."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and dotted(node.test.left).endswith("num_hidden_layers")
        and isinstance(node.test.ops[0], ast.NotEq)
        and any(isinstance(statement, ast.Raise) for statement in node.body)
    )


def _is_times_three(node: ast.AST) -> bool:
    """``self.hidden_size_in * 3``."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and dotted(node.left).endswith("hidden_size_in")
        and isinstance(node.right, ast.Constant)
        and node.right.value == 3
    )

"""Conditions on the GPU in SGLang's source, evaluated for a compute capability.

The helpers (``is_sm100_supported`` and the like) are read from the release's own ``utils/common.py``; their conditions
on the CUDA version are taken to hold, as they do for every CUDA 13 stack. What does not depend on the GPU is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from stack_builder.sglang.constants import UNKNOWN, Evaluator, dotted
from stack_builder.sglang.source import SourceTree
from stack_builder.stack.gpu import Gpu

COMMON = "sglang/srt/utils/common.py"

# Facts of a machine with NVIDIA GPUs and FlashInfer, by the last part of the name that asks for them.
_MACHINE = {"is_cuda": True, "is_cuda_alike": True, "is_flashinfer_available": True, "has_flashinfer": True}
_MACHINE |= dict.fromkeys(("is_hip", "is_musa", "is_npu", "is_xpu", "is_cpu", "is_mps", "is_hpu"), False)

_COMPARE: Mapping[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # type: ignore[dict-item]
    ast.LtE: operator.le,  # type: ignore[dict-item]
    ast.Gt: operator.gt,  # type: ignore[dict-item]
    ast.GtE: operator.ge,  # type: ignore[dict-item]
    ast.In: lambda left, right: left in right,  # type: ignore[operator]
    ast.NotIn: lambda left, right: left not in right,  # type: ignore[operator]
}


class Conditions:
    """Evaluates conditions of one release."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._evaluator = Evaluator(tree)
        self._helpers = _helpers(tree.module(COMMON)) if tree.has(COMMON) else {}

    def holds(self, node: ast.expr, path: str, gpu: Gpu, local: Mapping[str, object]) -> object:
        """True, False or :data:`~stack_builder.sglang.constants.UNKNOWN`; or a number where that is asked.

        Args:
            node: the condition.
            path: the file it stands in.
            gpu: for which GPU.
            local: values of local names and, by their text, of sub-expressions that the request decides.
        """
        text = ast.unparse(node)
        if text in local:
            return local[text]
        match node:
            case ast.BoolOp(op=op, values=values):
                return _junction([self.holds(v, path, gpu, local) for v in values], decisive=isinstance(op, ast.Or))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.holds(operand, path, gpu, local)
                return UNKNOWN if value is UNKNOWN else not value
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self.holds(n, path, gpu, local) for n in (left, *others)]
                return _compared(sides, ops)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                value = self.holds(test, path, gpu, local)
                chosen = body if value is True else orelse
                return UNKNOWN if value is UNKNOWN else self.holds(chosen, path, gpu, local)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                numbers = [self.holds(n, path, gpu, local) for n in (left, right)]
                return numbers[0] // numbers[1] if all(isinstance(n, int) and n for n in numbers) else UNKNOWN  # type: ignore[operator]
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))):
                owner = self.holds(value, path, gpu, local)
                return owner[index] if isinstance(owner, tuple) and -len(owner) <= index < len(owner) else UNKNOWN
            case ast.Call(func=function) if not node.args or dotted(function).endswith("get_device_capability"):
                return self._named(_last(function), gpu)
            case ast.Attribute(attr=attribute):  # get_platform().is_sm120 asks is_sm120_supported (runtime_context.py)
                supported = self._named(f"{attribute}_supported", gpu)
                return supported if supported is not UNKNOWN else self._named(attribute, gpu)
            case ast.Name(id=name):
                return self._name(name, path, gpu)
            case _:
                return self._evaluator.evaluate(node, path, local)

    def _name(self, name: str, path: str, gpu: Gpu) -> object:
        """A module's own name for a condition, such as ``_is_sm100_supported``."""
        statement = self._evaluator.scope(path).get(name)
        if isinstance(statement, ast.Assign):
            return self.holds(statement.value, path, gpu, {})
        known = self._named(name, gpu)
        return known if known is not UNKNOWN else self._evaluator.name(path, name)

    def _named(self, name: str, gpu: Gpu) -> object:
        match name:
            case "get_device_capability":
                return (gpu.major, gpu.minor)
            case "get_device_sm":
                return gpu.capability
            case "is_hopper_with_cuda_12_3":
                return gpu.major == 9
            case _:
                pass
        if name in _MACHINE:
            return _MACHINE[name]
        if name in self._helpers:
            return gpu.capability in self._helpers[name] or gpu.major in self._helpers[name]
        return UNKNOWN


def _helpers(module: ast.Module) -> dict[str, tuple[int, ...]]:
    """Helper -> majors (below 20) or whole capabilities (120) for which it holds."""
    found: dict[str, tuple[int, ...]] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            majors = _majors(node.value)
            if majors:
                found.update({t.id: majors for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("is_sm"):
            for part in ast.walk(node):
                if isinstance(part, ast.Compare) and isinstance(part.comparators[0], ast.Tuple):
                    numbers = [e.value for e in part.comparators[0].elts if isinstance(e, ast.Constant)]
                    if len(numbers) == 2 and all(isinstance(n, int) for n in numbers):
                        found[node.name] = (int(str(numbers[0])) * 10 + int(str(numbers[1])),)
    return found


def _majors(value: ast.expr) -> tuple[int, ...]:
    """``…(partial(_check_cuda_device_version, device_capability_majors=[10, 11], …))``."""
    for node in ast.walk(value):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "device_capability_majors"
            and isinstance(node.value, ast.List)
        ):
            return tuple(e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, int))
    return ()


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _junction(values: list[object], *, decisive: bool) -> object:
    """``or`` is decided by one True, ``and`` by one False; the rest must be known."""
    if any(v is not UNKNOWN and bool(v) is decisive for v in values):
        return decisive
    return UNKNOWN if any(v is UNKNOWN for v in values) else not decisive


def _compared(sides: list[object], ops: list[ast.cmpop]) -> object:
    if any(side is UNKNOWN for side in sides):
        return UNKNOWN
    try:
        return all(_COMPARE[type(op)](left, right) for op, left, right in zip(ops, sides, sides[1:], strict=False))
    except (KeyError, TypeError):
        return UNKNOWN

"""Places in the source that a reading names, and what they say for a GPU.

An anchor is found by what it is (a ``raise``, an ``assert``, a function's value, a key of a dictionary) and a piece of
its text, in the first of several files that has it: it survives line numbers, formatting and moves between files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stack_builder.sglang.constants import UNKNOWN, dotted
from stack_builder.sglang.gates.capability import Conditions
from stack_builder.stack.gpu import Gpu


class Kind(StrEnum):
    """What an anchor is."""

    RAISES = "raises"
    """A ``raise``: true where all conditions around it hold."""
    ASSERTS = "asserts"
    """An ``assert``: true where it fails."""
    RETURNS = "returns"
    """A function: true where its value is not false, or is what ``equals`` says."""
    BRANCH = "branch"
    """An ``if``, by the text of its test and body: true where its test may hold."""
    REACHED = "reached"
    """A plain statement: true where all conditions around it hold."""
    KEYS = "keys"
    """A dictionary: true where it has the GPU's major as a key."""
    PRESENT = "present"
    """Any text: true where it stands."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """How to find a place.

    Attributes:
        kind: what it is.
        files: below ``sglang/``; the first that has it counts.
        text: what its source contains, spaces aside; for ``keys`` the dictionary's name.
        symbol: function or class that it stands in; empty for anywhere.
        given: text of a sub-expression -> its value where the feature is requested; ``$sm`` and ``$major`` stand for
            the GPU's.
        equals: the value that makes a function count as true.
    """

    kind: Kind
    files: tuple[str, ...]
    text: str
    symbol: str = ""
    given: Mapping[str, object] | None = None
    equals: object = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an anchor was found.

    Attributes:
        path: the file.
        line: in it.
        symbol: innermost function or class around it.
        condition: text of what decides, on one line.
    """

    path: str
    line: int
    symbol: str
    condition: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f" ({self.symbol})" if self.symbol else "")


@dataclass(frozen=True, slots=True)
class _Spot:
    path: str
    node: ast.AST
    around: tuple[ast.AST, ...]  # outermost first

    @property
    def function(self) -> ast.AST | None:
        return next((n for n in reversed(self.around) if isinstance(n, ast.FunctionDef | ast.ClassDef)), None)


class Finder:
    """Finds anchors in one release and reads them for GPUs."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._tree = conditions.tree

    def read(self, anchor: Anchor, gpu: Gpu) -> tuple[bool | None, Place] | None:
        """What the anchor says for a GPU, and where; None where this release does not have it.

        Returns:
            True, False, or None for what the source does not tell; where several places match, a true one decides.
        """
        for file in anchor.files:
            path = f"sglang/{file}"
            if not self._tree.has(path) or _plain(anchor.text).encode() not in _squeeze(self._tree.read(path)):
                continue
            results = [self._read(anchor, spot, gpu) for spot in self._spots(path, anchor)]
            if results:
                return next((r for r in results if r[0]), results[0])
        return None

    def _spots(self, path: str, anchor: Anchor) -> Iterator[_Spot]:
        wanted = _plain(anchor.text)
        for spot in _walk(path, self._tree.module(path), ()):
            names = [getattr(node, "name", "") for node in (*spot.around, spot.node)]
            if (not anchor.symbol or anchor.symbol in names) and _is(spot, anchor, wanted):
                yield spot

    def _read(self, anchor: Anchor, spot: _Spot, gpu: Gpu) -> tuple[bool | None, Place]:
        numbers = {"$sm": gpu.capability, "$major": gpu.major}
        given = {text: numbers.get(str(value), value) for text, value in (anchor.given or {}).items()}
        match spot.node:
            case _ if anchor.kind is Kind.PRESENT:
                return True, _place(spot, anchor.text)
            case ast.FunctionDef() as function:
                result = self._run(function.body, spot.path, gpu, given)
                shown, value = ("", UNKNOWN) if result is None else (ast.unparse(result[0]), result[1])
                if anchor.equals is not None:
                    return (None if value is UNKNOWN else value == anchor.equals), _place(spot, shown)
                return (True if value is UNKNOWN else bool(value)), _place(spot, shown)
            case ast.Assign(value=ast.Dict(keys=keys)):
                found = sorted(k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, int))
                return gpu.major in found, _place(spot, f"{anchor.text} has {found}")
            case _:
                pass
        conditions = _conditions(spot)
        if isinstance(spot.node, ast.If):
            conditions = [(spot.node.test, True)]
        elif isinstance(spot.node, ast.Assert):
            conditions.append((spot.node.test, False))
        local = {**self._locals(spot, gpu), **given}
        values = [self._agrees(test, holds, spot.path, gpu, local) for test, holds in conditions]
        shown = " and ".join(ast.unparse(t) if holds else f"not ({ast.unparse(t)})" for t, holds in conditions[-1:])
        return _all(values, strict=isinstance(spot.node, ast.Assert)), _place(spot, shown)

    def _agrees(self, test: ast.expr, holds: bool, path: str, gpu: Gpu, local: Mapping[str, object]) -> bool | None:
        value = self._conditions.holds(test, path, gpu, local)
        return None if value is UNKNOWN else bool(value) is holds

    def _locals(self, spot: _Spot, gpu: Gpu) -> dict[str, object]:
        """Local names that hold the capability: ``major, minor = get_device_capability()``."""
        local: dict[str, object] = {}
        for node in ast.walk(spot.function) if isinstance(spot.function, ast.FunctionDef) else ():
            if isinstance(node, ast.Assign):
                self._assign(node, spot.path, gpu, local)
        return local

    def _assign(self, node: ast.Assign, path: str, gpu: Gpu, local: dict[str, object]) -> None:
        value = self._conditions.holds(node.value, path, gpu, local)
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(value, bool | int | tuple):
            local[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            local.update({e.id: v for e, v in zip(target.elts, value, strict=True) if isinstance(e, ast.Name)})

    def _run(
        self, body: Sequence[ast.stmt], path: str, gpu: Gpu, local: dict[str, object]
    ) -> tuple[ast.expr, object] | None:
        """Run a function as far as the GPU decides: a branch whose condition cannot be told is not taken."""
        for node in body:
            result = None
            match node:
                case ast.Assign():
                    self._assign(node, path, gpu, local)
                case ast.Return(value=ast.expr() as value):
                    return value, self._conditions.holds(value, path, gpu, local)
                case ast.If(test=test, body=inner, orelse=other):
                    decided = self._conditions.holds(test, path, gpu, local)
                    if decided is not UNKNOWN:
                        result = self._run(inner if decided else other, path, gpu, local)
                case ast.Try(body=inner):
                    result = self._run(inner, path, gpu, local)
                case _:
                    pass
            if result is not None:
                return result
        return None


def _all(values: list[bool | None], *, strict: bool) -> bool | None:
    """Whether a place is reached: one False says no; what cannot be told is what the request decides.

    Args:
        values: of the conditions around the place, the last of an assertion that of its failing.
        strict: the last has to be known.
    """
    if False in values:
        return False
    return None if strict and values[-1] is None else True


def _walk(path: str, node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[_Spot]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield _Spot(path, child, around)
            yield from _walk(path, child, (*around, child))
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _walk(path, child, around)


def _is(spot: _Spot, anchor: Anchor, wanted: str) -> bool:
    node = spot.node
    match anchor.kind:
        case Kind.RAISES:
            return isinstance(node, ast.Raise) and wanted in _text(node)
        case Kind.ASSERTS:
            return isinstance(node, ast.Assert) and wanted in _text(node)
        case Kind.RETURNS:
            return isinstance(node, ast.FunctionDef) and node.name == anchor.symbol
        case Kind.BRANCH:
            return isinstance(node, ast.If) and any(wanted in _text(part) for part in (node.test, *node.body))
        case Kind.KEYS:
            return isinstance(node, ast.Assign) and any(dotted(t) == anchor.text for t in node.targets)
        case Kind.REACHED:
            return isinstance(node, _PLAIN) and wanted in _text(node)
        case Kind.PRESENT:
            shown = node.test if isinstance(node, ast.If) else node
            return isinstance(node, (*_PLAIN, ast.If)) and wanted in _text(shown)


_PLAIN = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return, ast.ImportFrom)


def _conditions(spot: _Spot) -> list[tuple[ast.expr, bool]]:
    """Conditions under which a statement is reached inside its function, outermost first."""
    chain = [*spot.around, spot.node]
    start = max((i for i, n in enumerate(chain) if isinstance(n, ast.FunctionDef)), default=-1) + 1
    found = []
    for outer, inner in zip(chain[start:], chain[start + 1 :], strict=False):
        if isinstance(outer, ast.If):
            found.append((outer.test, any(inner is statement for statement in outer.body)))
    return found


def _place(spot: _Spot, condition: str) -> Place:
    function = spot.function if not isinstance(spot.node, ast.FunctionDef | ast.ClassDef) else spot.node
    return Place(spot.path, getattr(spot.node, "lineno", 0), getattr(function, "name", ""), condition)


def _text(node: ast.AST) -> str:
    return _plain(ast.unparse(node))


def _plain(text: str) -> str:
    return "".join(text.split()).replace('"', "'")


def _squeeze(source: bytes) -> bytes:
    """Source with spaces and quotes out of the way; strings joined over lines stay apart, so keep texts short."""
    return b"".join(source.split()).replace(b'"', b"'")

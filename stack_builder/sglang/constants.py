"""Constants of a source tree, evaluated without running it.

A small interpreter for the expressions that SGLang uses to define options: literals, sums of lists, names followed
through imports, class attributes, members of enumerations, ``list(X.keys())``, comprehensions over these. What it
cannot know is :data:`UNKNOWN`, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from stack_builder.sglang.source import SourceTree

MAX_DEPTH = 40  # of names that refer to names


class Unknown:
    """The value of an expression that static reading cannot tell."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value is neither true nor false")


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class of the source tree as a value."""

    path: str
    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function of the source tree as a value."""

    path: str
    node: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration."""

    name: str
    value: object


class Evaluator:
    """Evaluates expressions in the scope of modules of one tree."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._scopes: dict[str, dict[str, ast.stmt]] = {}
        self._globals: dict[tuple[str, str], object] = {}

    def scope(self, path: str) -> dict[str, ast.stmt]:
        """Names that a module binds at its top level, and the statement that binds each last."""
        if path not in self._scopes:
            self._scopes[path] = _bindings(self.tree.module(path).body)
        return self._scopes[path]

    def name(self, path: str, name: str, depth: int = 0) -> object:
        """The value of a global name of a module."""
        key = (path, name)
        if key not in self._globals:
            self._globals[key] = UNKNOWN  # a name that refers to itself
            statement = self.scope(path).get(name)
            if statement is not None and depth < MAX_DEPTH:
                self._globals[key] = self._bound(path, name, statement, depth + 1)
        return self._globals[key]

    def evaluate(self, node: ast.expr, path: str, local: Mapping[str, object], depth: int = 0) -> object:
        """The value of an expression in a module, given the values of local names."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return UNKNOWN if method is None else method(node, path, local, depth + 1)

    def attribute_of_class(self, cls: ClassRef, name: str, depth: int = 0) -> object:
        """A class attribute, found in the class body or in a base of the tree."""
        body = _bindings(cls.node.body)
        if name in body:
            value = self._bound(cls.path, name, body[name], depth + 1, _ClassBody(self, cls, depth))
            return Member(name, value) if _is_enum(cls.node) else value
        for base in cls.node.bases:
            ref = self.evaluate(base, cls.path, {}, depth + 1)
            if isinstance(ref, ClassRef) and ref != cls:
                value = self.attribute_of_class(ref, name, depth + 1)
                if value is not UNKNOWN:
                    return value
        return UNKNOWN

    def _bound(
        self, path: str, name: str, node: ast.stmt, depth: int, local: Mapping[str, object] | None = None
    ) -> object:
        match node:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self.evaluate(value, path, local or {}, depth)
            case ast.ClassDef():
                return ClassRef(path, node)
            case ast.FunctionDef():
                return FunctionRef(path, node)
            case ast.ImportFrom():
                return self._imported(path, name, node, depth)
            case _:
                return UNKNOWN

    def _imported(self, path: str, name: str, node: ast.ImportFrom, depth: int) -> object:
        module = absolute_module(path, node)
        original = next((a.name for a in node.names if (a.asname or a.name) == name), name)
        file = self.tree.find_module(module)
        if file is None:
            return UNKNOWN
        return self.name(file, original, depth)

    # one method per kind of expression, found by evaluate()

    def _constant(self, node: ast.Constant, *_: object) -> object:
        return node.value

    def _name(self, node: ast.Name, path: str, local: Mapping[str, object], depth: int) -> object:
        return local[node.id] if node.id in local else self.name(path, node.id, depth)

    def _list(self, node: ast.List, path: str, local: Mapping[str, object], depth: int) -> object:
        return self._sequence(node.elts, path, local, depth)

    def _set(self, node: ast.Set, path: str, local: Mapping[str, object], depth: int) -> object:
        items = self._sequence(node.elts, path, local, depth)
        return _collection("set", items)

    def _tuple(self, node: ast.Tuple, path: str, local: Mapping[str, object], depth: int) -> object:
        items = self._sequence(node.elts, path, local, depth)
        return tuple(items) if isinstance(items, list) else UNKNOWN

    def _sequence(self, nodes: list[ast.expr], path: str, local: Mapping[str, object], depth: int) -> object:
        values: list[object] = []
        for element in nodes:
            starred = isinstance(element, ast.Starred)
            value = self.evaluate(element.value if isinstance(element, ast.Starred) else element, path, local, depth)
            if not starred:
                values.append(value)
            elif isinstance(value, list | tuple):
                values.extend(value)
            else:
                return UNKNOWN
        return values

    def _dict(self, node: ast.Dict, path: str, local: Mapping[str, object], depth: int) -> object:
        result: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                spread = self.evaluate(value, path, local, depth)
                if not isinstance(spread, dict):
                    return UNKNOWN
                result.update(spread)
                continue
            known = self.evaluate(key, path, local, depth)
            if not isinstance(known, str | int | float | tuple | Member):
                return UNKNOWN
            result[known] = self.evaluate(value, path, local, depth)
        return result

    def _binop(self, node: ast.BinOp, path: str, local: Mapping[str, object], depth: int) -> object:
        left = self.evaluate(node.left, path, local, depth)
        right = self.evaluate(node.right, path, local, depth)
        return _arithmetic(node.op, left, right)

    def _unaryop(self, node: ast.UnaryOp, path: str, local: Mapping[str, object], depth: int) -> object:
        value = self.evaluate(node.operand, path, local, depth)
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else UNKNOWN

    def _joinedstr(self, node: ast.JoinedStr, path: str, local: Mapping[str, object], depth: int) -> object:
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)

    def _attribute(self, node: ast.Attribute, path: str, local: Mapping[str, object], depth: int) -> object:
        owner = self.evaluate(node.value, path, local, depth)
        if isinstance(owner, ClassRef):
            return self.attribute_of_class(owner, node.attr, depth)
        if isinstance(owner, Member):
            return {"name": owner.name, "value": owner.value}.get(node.attr, UNKNOWN)
        return UNKNOWN

    def _subscript(self, node: ast.Subscript, path: str, local: Mapping[str, object], depth: int) -> object:
        owner = self.evaluate(node.value, path, local, depth)
        index = self.evaluate(node.slice, path, local, depth)
        if isinstance(owner, list | tuple) and isinstance(index, int) and -len(owner) <= index < len(owner):
            return owner[index]
        return owner.get(index, UNKNOWN) if isinstance(owner, dict) and isinstance(index, str | int) else UNKNOWN

    def _listcomp(self, node: ast.ListComp, path: str, local: Mapping[str, object], depth: int) -> object:
        if len(node.generators) != 1 or node.generators[0].ifs:
            return UNKNOWN
        generator = node.generators[0]
        items = self._iterate(self.evaluate(generator.iter, path, local, depth), depth)
        if items is None or not isinstance(generator.target, ast.Name):
            return UNKNOWN
        name = generator.target.id
        return [self.evaluate(node.elt, path, {**local, name: item}, depth) for item in items]

    def _iterate(self, value: object, depth: int) -> list[object] | None:
        if isinstance(value, ClassRef) and _is_enum(value.node):
            names = [n for n, s in _bindings(value.node.body).items() if isinstance(s, ast.Assign) and n[0] != "_"]
            return [self.attribute_of_class(value, name, depth) for name in names]
        return list(value) if isinstance(value, list | tuple | dict) else None

    def _call(self, node: ast.Call, path: str, local: Mapping[str, object], depth: int) -> object:
        function = node.func
        if dotted(function) in ("field", "dataclasses.field", "msgspec.field"):
            return self._field(node, path, local, depth)
        arguments = [self.evaluate(a, path, local, depth) for a in node.args]
        if isinstance(function, ast.Attribute):
            owner = self.evaluate(function.value, path, local, depth)
            return _method(owner, function.attr, arguments)
        if not isinstance(function, ast.Name):
            return UNKNOWN
        target = self._name(function, path, local, depth)
        if isinstance(target, FunctionRef) and not node.args and not node.keywords:
            return self._last_return(target, depth)
        if function.id in ("list", "tuple", "set", "frozenset", "sorted") and len(arguments) == 1:
            items = arguments[0] if isinstance(arguments[0], set) else self._iterate(arguments[0], depth)
            return UNKNOWN if items is None else _collection(function.id, items)
        return arguments[0] if function.id in ("str", "int", "float") and _plain(arguments) else UNKNOWN

    def _field(self, node: ast.Call, path: str, local: Mapping[str, object], depth: int) -> object:
        """The default of a dataclass or msgspec field."""
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self.evaluate(keyword.value, path, local, depth)
            if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                return self.evaluate(keyword.value.body, path, local, depth)
            if keyword.arg == "default_factory":
                empty: dict[str, object] = {"list": [], "dict": {}, "tuple": ()}
                return empty.get(dotted(keyword.value), UNKNOWN)
        return UNKNOWN

    def _last_return(self, function: FunctionRef, depth: int) -> object:
        """What a function without parameters gives when none of its early exits is taken."""
        local = LocalImports(self, function.path, function.node.body, depth)
        last = function.node.body[-1]
        if isinstance(last, ast.Return) and last.value is not None:
            return self.evaluate(last.value, function.path, local, depth)
        return UNKNOWN


class LocalImports(dict[str, object]):
    """Names bound by import statements inside a function, evaluated when asked for."""

    def __init__(self, evaluator: Evaluator, path: str, body: list[ast.stmt], depth: int = 0) -> None:
        super().__init__()
        for statement in body:
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    name = alias.asname or alias.name
                    self[name] = evaluator._imported(path, name, statement, depth)


class _ClassBody(dict[str, object]):
    """Names of a class body as expressions of the same body see them; evaluated when asked for."""

    def __init__(self, evaluator: Evaluator, cls: ClassRef, depth: int) -> None:
        names = _bindings(cls.node.body)
        super().__init__(names)
        self._evaluator, self._cls, self._names, self._depth = evaluator, cls, names, depth

    def __getitem__(self, name: str) -> object:
        return self._evaluator._bound(self._cls.path, name, self._names[name], self._depth + 1)


def dotted(node: ast.expr) -> str:
    """``a.b.c`` for a chain of attributes on a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def absolute_module(path: str, node: ast.ImportFrom) -> str:
    """The dotted module that an import statement of the file ``path`` names."""
    if not node.level:
        return node.module or ""
    parts = path.removesuffix(".py").split("/")
    base = parts[: len(parts) - node.level]
    return ".".join([*base, *([node.module] if node.module else [])])


def _bindings(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=targets):
                found.update({t.id: statement for t in targets if isinstance(t, ast.Name)})
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                found[name] = statement
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = statement
            case ast.ImportFrom(names=names):
                found.update({a.asname or a.name: statement for a in names})
            case ast.If(body=inner, orelse=other):
                found.update({**_bindings(inner), **_bindings(other), **found})
            case ast.Try(body=inner):
                found.update(_bindings(inner))
            case _:
                pass
    return found


def _is_enum(node: ast.ClassDef) -> bool:
    names = (base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases)
    return any(name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag") for name in names)


def _plain(values: list[object]) -> bool:
    return len(values) == 1 and isinstance(values[0], str | int | float)


def _collection(name: str, items: object) -> object:
    if not isinstance(items, list | tuple | set):
        return UNKNOWN
    if name == "list":
        return list(items)
    if name == "tuple":
        return tuple(items)
    if any(not isinstance(i, str | int | float) for i in items):
        return UNKNOWN
    return sorted(items, key=str) if name == "sorted" else set(items)


def _method(owner: object, name: str, arguments: list[object]) -> object:
    if isinstance(owner, dict) and name == "keys" and not arguments:
        return list(owner)
    if isinstance(owner, dict) and name == "values" and not arguments:
        return list(owner.values())
    if isinstance(owner, str) and name in ("lower", "upper", "strip") and not arguments:
        return str(getattr(owner, name)())
    return UNKNOWN


def _arithmetic(op: ast.operator, left: object, right: object) -> object:
    if isinstance(op, ast.Add):
        if isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(left, tuple) and isinstance(right, tuple):
            return left + right
        if isinstance(left, str) and isinstance(right, str):
            return left + right
    if isinstance(left, int) and isinstance(right, int):
        if isinstance(op, ast.Add | ast.Sub | ast.Mult):
            return (
                left + right if isinstance(op, ast.Add) else left - right if isinstance(op, ast.Sub) else left * right
            )
        if isinstance(op, ast.LShift) and 0 <= right < 64:
            return left << right
    return UNKNOWN

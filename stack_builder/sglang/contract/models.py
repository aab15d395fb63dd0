"""The giving side: what each model class of a release has, from ``sglang/srt/models`` alone.

One file is reduced to a few names at a time (:func:`scan`), so that files can be read in parallel and the whole of a
release stays small enough to cache.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from stack_builder.sglang.constants import absolute_module, dotted
from stack_builder.sglang.source import parse

FOLDER = "sglang/srt/models"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A class of a model file.

    Attributes:
        name: of the class.
        path: the file.
        line: of its ``class``.
        bases: as written, dotted.
        methods: own methods, properties excluded, with the line of their ``def``.
        attributes: properties, class attributes and everything that own methods assign to ``self``.
        inner: attribute of ``self`` -> names of the classes that it is made from.
        dynamic: has ``__getattr__``, so that it may have more than can be read.
    """

    name: str
    path: str
    line: int
    bases: tuple[str, ...]
    methods: dict[str, int]
    attributes: tuple[str, ...]
    inner: dict[str, tuple[str, ...]]
    dynamic: bool


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file: its classes, what its names mean, and what it registers.

    Attributes:
        path: of the file.
        classes: by name.
        imports: local name -> (module, name there).
        aliases: ``X = Y`` at module level.
        registered: names in ``EntryClass``.
    """

    path: str
    classes: dict[str, ModelClass]
    imports: dict[str, tuple[str, str]]
    aliases: dict[str, str]
    registered: tuple[str, ...]


def scan(path: str, source: bytes) -> ModelFile:
    """Reduce one file.

    Raises:
        SourceError: it is not Python.
    """
    module = parse(source, path)
    classes: dict[str, ModelClass] = {}
    imports: dict[str, tuple[str, str]] = {}
    aliases: dict[str, str] = {}
    registered: list[str] = []
    inside: dict[str, tuple[str, str]] = {}  # imported by a method when it runs
    for node in _statements(module.body, into_definitions=False):
        match node:
            case ast.ImportFrom():
                imports.update(_imports(path, [node]))
            case ast.ClassDef(name=name):
                classes[name] = _class(path, node)
                inside.update(_imports(path, node.body))
            case ast.Assign(targets=[ast.Name(id="EntryClass")], value=value):
                registered = _names(value)
            case ast.AugAssign(target=ast.Name(id="EntryClass"), value=value):
                registered += _names(value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="EntryClass")), args=args)):
                registered += [name for argument in args for name in _names(argument)]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)):
                aliases[name] = other
            case _:
                pass
    return ModelFile(path, classes, {**inside, **imports}, aliases, tuple(registered))


def _imports(path: str, body: list[ast.stmt]) -> dict[str, tuple[str, str]]:
    return {
        alias.asname or alias.name: (absolute_module(path, node), alias.name)
        for node in _statements(body, into_definitions=True)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _class(path: str, node: ast.ClassDef) -> ModelClass:
    methods: dict[str, int] = {}
    attributes: set[str] = set()
    inner: dict[str, set[str]] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(dotted(d).rsplit(".", 1)[-1] in ("property", "cached_property") for d in statement.decorator_list):
                attributes.add(statement.name)
            else:
                methods[statement.name] = statement.lineno
            _self_attributes(statement, attributes, inner)
        else:
            attributes.update(_targets(statement))
    return ModelClass(
        name=node.name,
        path=path,
        line=node.lineno,
        bases=tuple(filter(None, map(dotted, node.bases))),
        methods=methods,
        attributes=tuple(sorted(attributes)),
        inner={name: tuple(sorted(found)) for name, found in sorted(inner.items())},
        dynamic="__getattr__" in methods,
    )


def _self_attributes(function: ast.AST, attributes: set[str], inner: dict[str, set[str]]) -> None:
    """Collect ``self.x = …``; where the value is ``Class(…)``, remember the class."""
    local: dict[str, set[str]] = {}
    for node in _statements(getattr(function, "body", []), into_definitions=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        made = set(_made_by(node.value))
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    attributes.add(part.attr)
                    known = {c for name in made for c in local.get(name, {name})}
                    inner.setdefault(part.attr, set()).update(known)
                elif isinstance(part, ast.Name):
                    local.setdefault(part.id, set()).update(_classes_in(node.value))
    for name in [name for name, found in inner.items() if not found]:
        del inner[name]


def _made_by(value: ast.expr) -> Iterator[str]:
    """Names of the classes that an expression instantiates, through ``a if … else b``."""
    match value:
        case ast.Call(func=ast.Name(id=name)):
            yield name
        case ast.IfExp(body=body, orelse=orelse):
            yield from _made_by(body)
            yield from _made_by(orelse)
        case _:
            pass


def _classes_in(value: ast.expr) -> set[str]:
    """Names that an expression may stand for: a class chosen into a variable."""
    match value:
        case ast.Name(id=name):
            return {name}
        case ast.IfExp(body=body, orelse=orelse):
            return _classes_in(body) | _classes_in(orelse)
        case _:
            return set()


def _names(value: ast.expr) -> list[str]:
    match value:
        case ast.Name(id=name):
            return [name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [name for element in elements for name in _names(element)]
        case _:
            return []


def _targets(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=targets):
            yield from (t.id for t in targets if isinstance(t, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name
        case _:
            pass


def _statements(body: list[ast.stmt], *, into_definitions: bool) -> Iterator[ast.stmt]:
    """All statements of a body, nested blocks included; expressions are not entered."""
    for statement in body:
        yield statement
        if not into_definitions and isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []), into_definitions=into_definitions)
        for handler in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _statements(handler.body, into_definitions=into_definitions)

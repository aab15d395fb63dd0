"""The asking side: where SGLang's runtime reaches into a model, read from one file at a time.

There are no types to follow, so expressions are recognised by name: ``….target_worker.model_runner.model`` is the
target model, ``draft_runner.model`` the draft, ``self.model`` in a model runner is either. Local names are followed; a
model handed to a function is followed into its parameters when the files are linked (:mod:`.requirements`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from stack_builder.sglang.constants import dotted
from stack_builder.sglang.source import parse

FOLDERS = (
    "sglang/srt/speculative",
    "sglang/srt/model_executor",
    "sglang/srt/managers",
    "sglang/srt/eplb",
    "sglang/srt/utils",
)

# Files of the speculative folder that serve other algorithms than EAGLE-3.
_OTHER_ALGORITHM = re.compile(r"dflash|dspark|ngram|uno|frozen_kv|standalone|multi_layer|domino|lilicorr")
_EAGLE_CONDITION = re.compile(r"eagle|aux_hidden")
_MENTIONS_MODEL = re.compile(rb"model|runner")

_DRAFT_RUNNERS = ("draft_model_runner", "draft_runner", "draft_runner_list", "mtp_model_runner", "draft_model_runners")
_RUNNERS = ("model_runner", "mr", "runner")


class Role(StrEnum):
    """Which model an expression stands for."""

    TARGET = "target"
    DRAFT = "draft"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Typed:
    """What an expression is: a model or its runner.

    Attributes:
        is_model: else a runner.
        role: whose.
        parameter: ``(function, name)`` where it is a parameter whose role only its callers tell.
    """

    is_model: bool
    role: Role
    parameter: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """One place that reads, calls or sets an attribute of a model.

    Attributes:
        model: whose attribute.
        attribute: its name.
        optional: guarded by ``hasattr``, given a default, or in an exception handler.
        called: whether it is called.
        eagle: whether only speculation with EAGLE-3 comes here.
        path: the file.
        line: in it.
    """

    model: Typed
    attribute: str
    optional: bool
    called: bool
    eagle: bool
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Handed:
    """A model given to a function: by name, or by position for a parameter whose name the definition tells."""

    function: str
    parameter: str | int
    model: Typed
    eagle: bool


@dataclass(frozen=True, slots=True)
class FileUses:
    """What one file says about models."""

    path: str
    uses: tuple[Use, ...]
    handed: tuple[Handed, ...]
    parameters: dict[str, tuple[str, ...]]


def scan(path: str, source: bytes) -> FileUses:
    """Reduce one file.

    Raises:
        SourceError: it is not Python.
    """
    if not _MENTIONS_MODEL.search(source):
        return FileUses(path, (), (), {})
    reader = _Reader(path, source)
    reader.block(parse(source, path).body, _Scope())
    return FileUses(path, tuple(dict.fromkeys(reader.uses)), tuple(dict.fromkeys(reader.handed)), reader.parameters)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What holds at a place in the file."""

    function: str = ""
    in_runner_class: bool = False
    eagle: bool = False
    target_only: bool = False
    excluded: bool = False
    in_handler: bool = False
    guarded: frozenset[Typed] = frozenset()


class _Reader:
    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        mentions = (bool(_MENTIONS_MODEL.search(line)) for line in source.split(b"\n"))
        self.mentions = [0, *accumulate(mentions)]  # lines up to each that name a model or a runner
        self.uses: list[Use] = []
        self.handed: list[Handed] = []
        self.parameters: dict[str, tuple[str, ...]] = {}
        self.local: dict[str, Typed] = {}
        speculative = path.startswith(FOLDERS[0])
        self.eagle_file = speculative and not _OTHER_ALGORITHM.search(path.rsplit("/", 1)[-1] + path)
        self.own_role = Role.DRAFT if speculative else Role.ANY

    # statements

    def block(self, body: Iterable[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: _Scope) -> None:
        match node:
            case ast.ClassDef():
                runner = "Runner" in node.name and "model_executor" in self.path
                self.block(node.body, replace(scope, in_runner_class=runner or scope.in_runner_class))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.If() | ast.While():
                self.expression(node.test, scope)
                self.block(node.body, _under(scope, node.test, holds=True, guards=self._guards(node.test)))
                self.block(node.orelse, _under(scope, node.test, holds=False))
            case ast.Try():
                self.block([*node.body, *node.orelse, *node.finalbody], scope)
                for handler in node.handlers:
                    self.block(handler.body, replace(scope, in_handler=True))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.expression(value, scope)
                self._bind(name, value, scope)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._child(child, scope)

    def _child(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, ast.stmt):
            self.statement(node, scope)
        elif isinstance(node, ast.expr):
            self.expression(node, scope)
        else:  # with items, match cases, keywords, comprehensions
            for child in ast.iter_child_nodes(node):
                self._child(child, scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        if self.mentions[node.lineno - 1] == self.mentions[node.end_lineno or -1]:
            return  # it cannot come by a model
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        plain = tuple(n for n in names if n not in ("self", "cls"))
        self.parameters[node.name] = plain
        outer = dict(self.local)
        for name in plain:
            self.local.pop(name, None)
            if name.endswith("model") and _named(name, self.own_role) is None:
                self.local[name] = Typed(True, Role.ANY, (node.name, name))
        self.block(node.body, replace(scope, function=node.name))
        self.local = outer

    def _bind(self, name: str, value: ast.expr, scope: _Scope) -> None:
        typed = self.typed(value, scope)
        if typed is not None:
            self.local[name] = typed
        else:
            self.local.pop(name, None)

    # expressions

    def expression(self, node: ast.expr, scope: _Scope) -> None:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    self.expression(value, scope)
                    scope = _under(scope, value, holds=True, guards=self._guards(value))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.expression(test, scope)
                self.expression(body, _under(scope, test, holds=True, guards=self._guards(test)))
                self.expression(orelse, _under(scope, test, holds=False))
            case ast.Call():
                self._call(node, scope)
            case ast.Attribute():
                self._attribute(node, scope, called=False)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._child(child, scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        function = dotted(node.func)
        if function in ("hasattr", "getattr") and len(node.args) >= 2:
            typed, name = self.typed(node.args[0], scope), node.args[1]
            if typed is not None and isinstance(name, ast.Constant) and isinstance(name.value, str):
                optional = function == "hasattr" or len(node.args) > 2
                self._use(typed, name.value, node, replace(scope, in_handler=scope.in_handler or optional))
                return
        if isinstance(node.func, ast.Attribute):
            self._attribute(node.func, scope, called=True)
        called = function.rsplit(".", 1)[-1]
        given: list[tuple[str | int, ast.expr]] = [*enumerate(node.args)]
        given += [(k.arg, k.value) for k in node.keywords if k.arg]
        for parameter, value in given:
            typed = self.typed(value, scope)
            if typed is not None and called:
                whose = self._narrowed(typed, scope)
                self.handed.append(Handed(called, parameter, whose, self._is_eagle(scope)))
            self.expression(value, scope)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.expression(keyword.value, scope)

    def _attribute(self, node: ast.Attribute, scope: _Scope, *, called: bool) -> None:
        typed = self.typed(node.value, scope)
        if typed is not None and typed.is_model:
            self._use(typed, node.attr, node, scope, called=called)
        self.expression(node.value, scope)

    def _use(self, typed: Typed, name: str, node: ast.expr, scope: _Scope, *, called: bool = False) -> None:
        if typed.is_model and not scope.excluded:
            optional = scope.in_handler or typed in scope.guarded
            whose = self._narrowed(typed, scope)
            self.uses.append(Use(whose, name, optional, called, self._is_eagle(scope), self.path, node.lineno))

    def _is_eagle(self, scope: _Scope) -> bool:
        return self.eagle_file or scope.eagle

    def _narrowed(self, typed: Typed, scope: _Scope) -> Typed:
        """In a runner that serves either model, some conditions hold for the target only."""
        known = typed.role is Role.ANY and scope.target_only
        return Typed(typed.is_model, Role.TARGET) if known else typed

    def _guards(self, test: ast.expr) -> frozenset[Typed]:
        """Models of which a condition asks ``hasattr`` (or a getattr with a default), where it holds."""
        parts: Iterator[ast.expr] = iter(test.values if isinstance(test, ast.BoolOp) else [test])
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            return frozenset()
        found: set[Typed] = set()
        for part in parts:
            for call in (n for n in ast.walk(part) if isinstance(n, ast.Call)):
                negated = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
                if dotted(call.func) in ("hasattr", "getattr") and call.args and not negated:
                    typed = self.typed(call.args[0], _Scope())
                    found.update({typed} if typed is not None else ())
        return frozenset(found)

    # what an expression is, by name

    def typed(self, node: ast.expr, scope: _Scope) -> Typed | None:
        match node:
            case ast.Name(id=name):
                return self.local.get(name) or _named(name, self.own_role)
            case ast.Subscript(value=value):
                return self.typed(value, scope)
            case ast.Call(func=ast.Attribute(attr="mtp_model_runner")):
                return Typed(False, Role.DRAFT)
            case ast.Attribute(value=ast.Name(id="self"), attr="model") if scope.in_runner_class:
                return Typed(True, self.own_role)
            case ast.Attribute(value=owner, attr="model"):
                runner = self.typed(owner, scope)
                return Typed(True, runner.role) if runner is not None and not runner.is_model else None
            case ast.Attribute(value=owner, attr="model_runner"):
                worker = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                return Typed(False, _ROLE_OF_WORKER.get(worker, self.own_role))
            case ast.Attribute(attr=attribute):
                return _named(attribute, self.own_role)
            case _:
                return None


_ROLE_OF_WORKER: Mapping[str, Role] = {"target_worker": Role.TARGET, "draft_worker": Role.DRAFT}


def _named(name: str, own: Role) -> Typed | None:
    if name in ("target_model", "draft_model"):
        return Typed(True, Role(name.removesuffix("_model")))
    if name in _DRAFT_RUNNERS:
        return Typed(False, Role.DRAFT)
    if name in ("target_runner", "target_model_runner"):
        return Typed(False, Role.TARGET)
    return Typed(False, own) if name in _RUNNERS else None


def _under(scope: _Scope, test: ast.expr, *, holds: bool, guards: frozenset[Typed] = frozenset()) -> _Scope:
    """The scope inside a condition, or inside its else branch."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    words = _words(test)
    text = " ".join(words)
    if not holds:
        only_eagle3 = "is_eagle3" in words and not isinstance(test, ast.BoolOp) and not negated
        return replace(scope, excluded=True) if only_eagle3 else scope
    other = bool(_OTHER_ALGORITHM.search(text)) and "eagle" not in text
    return replace(
        scope,
        eagle=scope.eagle or bool(_EAGLE_CONDITION.search(text)),
        target_only=scope.target_only or "eagle_use_aux_hidden_state" in words or _denies_draft(test),
        excluded=scope.excluded or other or (negated and "is_eagle3" in words),
        guarded=scope.guarded | guards,
    )


def _words(test: ast.expr) -> list[str]:
    """Every name in a condition."""
    found = []
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
    return found


def _denies_draft(test: ast.expr) -> bool:
    """Whether a condition holds for the target's runner only: ``not self.is_draft_worker``, alone or in an ``and``."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(
        isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) and "is_draft_worker" in _words(part)
        for part in parts
    )

"""The contract of a release: what EAGLE-3 needs, who has it, and who could have it by delegating to an inner model."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from stack_builder.errors import UsageError
from stack_builder.sglang import cache
from stack_builder.sglang.contract import callsites, models, requirements, traps
from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.models import ModelClass, ModelFile
from stack_builder.sglang.contract.registry import Registry
from stack_builder.sglang.contract.requirements import Requirement
from stack_builder.sglang.contract.traps import Traps
from stack_builder.sglang.scanning import scan_files
from stack_builder.sglang.source import SourceTree


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A model that lacks something its inner model has.

    Attributes:
        architecture: of the wrapper.
        inner: attribute that holds the inner model, such as ``language_model``.
        classes: what the inner model may be, those first that have most.
        missing: required attributes that the wrapper lacks.
        delegable: those of ``missing`` that the first of ``classes`` has as methods.
        partial: names of classes among ``classes`` that lack some of ``delegable``.
    """

    architecture: str
    inner: str
    classes: tuple[str, ...]
    missing: tuple[str, ...]
    delegable: tuple[str, ...]
    partial: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether delegation is enough."""
        return self.missing == self.delegable


@dataclass(frozen=True, slots=True)
class Contract:
    """What EAGLE-3 needs of models in one release, and its models.

    Attributes:
        version: of SGLang.
        requirements: for both roles, sorted.
        registry: the model classes.
        traps: what goes wrong although every attribute is there.
    """

    version: str
    requirements: tuple[Requirement, ...]
    registry: Registry
    traps: Traps

    def required(self, role: Role) -> tuple[str, ...]:
        """Names of the attributes that a model must have."""
        return tuple(r.attribute for r in self.requirements if r.role is role and r.required)

    def missing(self, architecture: str, role: Role = Role.TARGET) -> tuple[str, ...]:
        """Required attributes that an architecture lacks.

        Raises:
            UsageError: this release registers no such architecture.
        """
        return self._missing(self.model(architecture), role)

    def model(self, architecture: str) -> ModelClass:
        """The class of an architecture.

        Raises:
            UsageError: this release registers no such architecture.
        """
        cls = self.registry.architectures.get(architecture)
        if cls is None:
            raise UsageError(f"SGLang {self.version} registers no architecture '{architecture}'")
        return cls

    def satisfying(self, role: Role = Role.TARGET) -> tuple[str, ...]:
        """Architectures that have everything required, sorted."""
        every = self.registry.architectures
        return tuple(sorted(name for name, cls in every.items() if not self._missing(cls, role)))

    def wrapper(self, architecture: str) -> Wrapper | None:
        """What a target could delegate; None where nothing is missing or no inner model has any of it."""
        cls = self.model(architecture)
        missing = self._missing(cls, Role.TARGET)
        found = (
            self._wrapper(architecture, attribute, classes, missing)
            for attribute, classes in self.registry.inner_models(cls).items()
        )
        useful = [w for w in found if w.delegable]
        return max(useful, key=lambda w: len(w.delegable), default=None)

    def wrappers(self) -> tuple[Wrapper, ...]:
        """All targets that could delegate, sorted by architecture."""
        found = (self.wrapper(name) for name in sorted(self.registry.architectures))
        return tuple(w for w in found if w is not None)

    def _missing(self, cls: ModelClass, role: Role) -> tuple[str, ...]:
        return tuple(name for name in self.required(role) if self.registry.find(cls, name) is None)

    def _wrapper(
        self, architecture: str, attribute: str, classes: tuple[ModelClass, ...], missing: tuple[str, ...]
    ) -> Wrapper:
        has = {cls.name: tuple(n for n in missing if n != "forward" and self._has_method(cls, n)) for cls in classes}
        ordered = tuple(sorted(has, key=lambda name: (-len(has[name]), name)))
        delegable = has[ordered[0]]
        partial = tuple(name for name in ordered if set(has[name]) != set(delegable))
        return Wrapper(architecture, attribute, ordered, missing, delegable, partial)

    def _has_method(self, cls: ModelClass, name: str) -> bool:
        found = self.registry.find(cls, name)
        return found is not None and found.is_method


def read(tree: SourceTree) -> Contract:
    """Derive the contract of a release; kept in the cache by the tree's identity.

    Raises:
        SourceError: a file that takes part is not Python.
    """
    return cache.through(tree, "contract", _derive, _to_json, _from_json)


def _derive(tree: SourceTree) -> Contract:
    asking = [path for folder in callsites.FOLDERS for path in tree.paths(folder)]
    giving = tree.paths(models.FOLDER)
    scanned = scan_files(tree, [*asking, *giving], scan)
    uses = (facts for facts in scanned if isinstance(facts, callsites.FileUses))
    files = (facts for facts in scanned if isinstance(facts, ModelFile))
    return Contract(tree.version, requirements.link(uses), Registry(files), traps.read(tree))


def scan(path: str, source: bytes) -> callsites.FileUses | ModelFile:
    """Reduce one file of either side."""
    return models.scan(path, source) if path.startswith(models.FOLDER + "/") else callsites.scan(path, source)


@dataclass(frozen=True, slots=True)
class Delegation:
    """Methods that make a wrapper hand what it lacks on to its inner model.

    Attributes:
        path: file of the wrapper.
        class_name: the wrapper.
        methods: name -> source of the method, indented by four spaces, without a trailing newline.
    """

    path: str
    class_name: str
    methods: Mapping[str, str]


def delegation_for(tree: SourceTree, contract: Contract, architecture: str) -> Delegation:
    """Write the methods that a wrapper lacks; signatures are those of the inner model, annotations left out.

    Raises:
        UsageError: the architecture is unknown, lacks nothing, or has no inner model that could help.
    """
    wrapper = contract.wrapper(architecture)
    if wrapper is None:
        missing = contract.missing(architecture)
        what = f"has no inner model with {' and '.join(missing)}" if missing else "already has all that EAGLE-3 needs"
        raise UsageError(f"{architecture} {what}", where=f"SGLang {contract.version}")
    cls = contract.model(architecture)
    inner = next(c for c in contract.registry.inner_models(cls)[wrapper.inner] if c.name == wrapper.classes[0])
    methods = {}
    for name in wrapper.delegable:
        found = contract.registry.find(inner, name)
        assert found is not None, name
        methods[name] = _delegate(_definition(tree, found.owner, name), wrapper.inner)
    return Delegation(cls.path, cls.name, methods)


def _definition(tree: SourceTree, owner: ModelClass, name: str) -> ast.FunctionDef:
    line = owner.methods[name]
    for node in ast.walk(tree.module(owner.path)):
        if isinstance(node, ast.FunctionDef) and node.name == name and node.lineno == line:
            return node
    raise UsageError(f"{owner.name}.{name} is no plain method", where=owner.path)


def _delegate(node: ast.FunctionDef, inner: str) -> str:
    """``def name(self, a, b=None): return self.inner.name(a, b)``."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    bare = ast.arguments(
        posonlyargs=[ast.arg(a.arg) for a in arguments.posonlyargs],
        args=[ast.arg(a.arg) for a in arguments.args],
        vararg=None if arguments.vararg is None else ast.arg(arguments.vararg.arg),
        kwonlyargs=[ast.arg(a.arg) for a in arguments.kwonlyargs],
        kw_defaults=[None if d is None else _constant(d) for d in arguments.kw_defaults],
        kwarg=None if arguments.kwarg is None else ast.arg(arguments.kwarg.arg),
        defaults=[_constant(d) for d in arguments.defaults],
    )
    passed = [a.arg for a in positional[1:]]
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    passed += [f"{a.arg}={a.arg}" for a in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    call = f"self.{inner}.{node.name}({', '.join(passed)})"
    return f"    def {node.name}({ast.unparse(bare)}):\n        return {call}"


def _constant(default: ast.expr) -> ast.expr:
    """A default that means the same in another file; None stands for all others, as the callee does."""
    return default if isinstance(default, ast.Constant) else ast.Constant(None)


def _to_json(contract: Contract) -> object:
    return {
        "version": contract.version,
        "requirements": [asdict(r) for r in contract.requirements],
        "traps": asdict(contract.traps),
        "files": [asdict(f) for f in contract.registry.files],
    }


def _from_json(body: object) -> Contract:
    assert isinstance(body, dict)
    asked = tuple(
        Requirement(Role(r["role"]), r["attribute"], r["required"], tuple(r["sites"])) for r in body["requirements"]
    )
    found = body["traps"]
    limits = Traps(_strings(found["default_layers"]), found["one_layer"], found["three_states"])
    return Contract(body["version"], asked, Registry(map(_file, body["files"])), limits)


def _file(body: Mapping[str, object]) -> ModelFile:
    classes, imports, aliases, registered = (body[k] for k in ("classes", "imports", "aliases", "registered"))
    assert isinstance(classes, dict)
    assert isinstance(imports, dict)
    assert isinstance(aliases, dict)
    assert isinstance(registered, list)
    return ModelFile(
        str(body["path"]),
        {name: _class(c) for name, c in classes.items()},
        {name: (pair[0], pair[1]) for name, pair in imports.items()},
        aliases,
        tuple(registered),
    )


def _class(c: Mapping[str, object]) -> ModelClass:
    return ModelClass(
        name=str(c["name"]),
        path=str(c["path"]),
        line=c["line"],  # type: ignore[arg-type]
        bases=_strings(c["bases"]),
        methods=c["methods"],  # type: ignore[arg-type]
        attributes=_strings(c["attributes"]),
        inner={name: _strings(v) for name, v in c["inner"].items()},  # type: ignore[attr-defined]
        dynamic=c["dynamic"] is True,
    )


def _strings(value: object) -> tuple[str, ...]:
    assert isinstance(value, Iterable)
    return tuple(map(str, value))

"""What ``import torch`` has loaded before any extension is: read from the installed torch's own source.

``torch/__init__.py`` opens ``libtorch_global_deps.so`` with ``RTLD_GLOBAL``, then some CUDA libraries by their files in
the ``nvidia`` wheels (which ones, in which order, and whether one that is absent ends it, differs by release), and
then imports ``torch._C``. The lists are taken from the functions ``_load_global_deps`` and ``_preload_cuda_…``
through ``ast``; nothing is run.
"""

from __future__ import annotations

import ast
import fnmatch
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stack_builder.elf.files import Files
from stack_builder.elf.layout import ElfError
from stack_builder.elf.linker import Linked, Process

GLOBAL_DEPS = "lib/libtorch_global_deps.so"
_ENTRY, _FOLDERS = "_load_global_deps", "_get_cuda_dep_paths"
_MAX_SOURCE = 4 << 20  # bytes; torch/__init__.py has 120,000
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Preload:
    """One library that torch opens by its file.

    Attributes:
        folder: of the ``nvidia`` wheels before CUDA 13, such as ``cuda_nvrtc``.
        pattern: of the file's name, such as ``libnvrtc.so.*[0-9]``.
        required: its absence is an error, which ends the sequence.
    """

    folder: str
    pattern: str
    required: bool


@dataclass(frozen=True, slots=True)
class PreloadPlan:
    """What ``_load_global_deps`` does.

    Attributes:
        after: preloads once ``libtorch_global_deps.so`` has been opened.
        rescue: preloads when that failed for want of a CUDA library, before it is tried again.
        only_with: libraries without which ``after`` is not done (a part of a loaded file's name).
        folders: where a preload is looked for, as parts of a path; ``*folder*``, ``*name*`` and ``*cuda*`` stand for
            the preload's folder and pattern and for torch's CUDA major.
    """

    after: tuple[Preload, ...] = ()
    rescue: tuple[Preload, ...] = ()
    only_with: tuple[str, ...] = ()
    folders: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TorchLoaded:
    """The course of ``import torch``, as far as the loader is concerned.

    Attributes:
        steps: every object that is opened, in order.
        absent: preloads whose file is not there.
        error: why the import fails, else None.
    """

    steps: tuple[Linked, ...]
    absent: tuple[Preload, ...] = ()
    error: str | None = None


def load_torch(
    process: Process,
    files: Files,
    folder: str,
    site: tuple[str, ...],
    cuda_major: int | None,
    *,
    symbols: bool = True,
) -> TorchLoaded:
    """Do to a process what ``import torch`` does to one.

    Args:
        process: a started process; what torch loads stays in it.
        files: the tree.
        folder: path of the ``torch`` package.
        site: ``sys.path``'s folders of packages, in order.
        cuda_major: of ``torch.version.cuda``.
        symbols: look up the symbols of torch's own libraries, too; without, only what they need is loaded.
    """
    source = f"{folder}/__init__.py"
    plan = PreloadPlan()
    if files.resolve(source) is not None:
        with files.open(source) as view:
            plan = read_plan(bytes(view[:_MAX_SOURCE]))
    course = _Course(process, files, site, cuda_major, plan, symbols)
    if files.resolve(f"{folder}/{GLOBAL_DEPS}") is not None:
        course.global_deps(f"{folder}/{GLOBAL_DEPS}")
    first_error = course.error
    extension = _extension(files, folder)
    if extension is None:
        course.error = f"{folder}/_C: no such module"
    else:
        course.open(extension, anyway=True)
    return TorchLoaded(tuple(course.steps), tuple(course.absent), first_error or course.error)


@dataclass(slots=True)
class _Course:
    process: Process
    files: Files
    site: tuple[str, ...]
    cuda_major: int | None
    plan: PreloadPlan
    symbols: bool
    steps: list[Linked] = field(default_factory=list)
    absent: list[Preload] = field(default_factory=list)
    error: str | None = None

    def open(self, path: str, *, everywhere: bool = False, anyway: bool = False) -> bool:
        """Open an object and say whether that works; ``error`` says why not."""
        try:
            linked = self.process.open(path, everywhere=everywhere, anyway=anyway, symbols=self.symbols)
        except ElfError as error:
            self.error = str(error)
            return False
        self.steps.append(linked)
        self.error = _failure(linked)
        return self.error is None

    def global_deps(self, path: str) -> None:
        if self.open(path, everywhere=True):
            names = [library.found.path for step in self.steps for library in step.closure]
            if all(any(part in name for name in names) for part in self.plan.only_with):
                self._preload(self.plan.after)
            self.error = None  # torch swallows what goes wrong with these
        elif self._preload(self.plan.rescue):
            self.open(path, everywhere=True)

    def _preload(self, wanted: tuple[Preload, ...]) -> bool:
        for preload in wanted:
            path = self._find(preload)
            if path is None:
                self.absent.append(preload)
                if preload.required:
                    return False
            elif not self.open(path):
                return False
        return True

    def _find(self, preload: Preload) -> str | None:
        values = {"*folder*": preload.folder, "*name*": preload.pattern, "*cuda*": str(self.cuda_major)}
        for base in self.site:
            for parts in self.plan.folders:
                if self.cuda_major is None and any("*cuda*" in part for part in parts):
                    continue
                filled = [values.get(part, part.replace("*cuda*", values["*cuda*"])) for part in parts]
                directory = posixpath.join(base, *filled[:-1])
                for entry in self.files.entries(directory):
                    name = entry.path.rpartition("/")[2]
                    if fnmatch.fnmatchcase(name, filled[-1]):
                        return f"{directory}/{name}"
        return None


def _failure(linked: Linked) -> str | None:
    """What dlopen would say."""
    if linked.missing_libraries:
        return f"{linked.missing_libraries[0].soname}: cannot open shared object file (needed by {linked.path})"
    if linked.missing_versions:
        lacks = linked.missing_versions[0]
        return f"{lacks.provider}: version `{lacks.version}' not found (required by {lacks.needed_by})"
    if linked.missing_symbols:
        return f"{linked.missing_symbols[0].needed_by}: undefined symbol: {linked.missing_symbols[0].name}"
    return None


def _extension(files: Files, folder: str) -> str | None:
    """Path of ``torch._C``."""
    names = (entry.path for entry in files.entries(folder) if posixpath.dirname(entry.path) == folder)
    return next((path for path in names if fnmatch.fnmatchcase(path.rpartition("/")[2], "_C.*.so")), None)


def read_plan(source: bytes) -> PreloadPlan:
    """Take the preloads from the source of ``torch/__init__.py``; an empty plan where there are none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return PreloadPlan()
    functions = {statement.name: statement for statement in body if isinstance(statement, ast.FunctionDef)}
    entry = functions.get(_ENTRY)
    if entry is None:
        return PreloadPlan()
    attempt = next((statement for statement in entry.body if isinstance(statement, ast.Try)), None)
    reader = _Reader(functions)
    if attempt is None:
        return PreloadPlan()
    rescue = [statement for handler in attempt.handlers for statement in handler.body]
    return PreloadPlan(
        after=tuple(reader.preloads(attempt.body, {})),
        rescue=tuple(reader.preloads(rescue, {})),
        only_with=tuple(_conditions(attempt.body)),
        folders=tuple(_folders(functions.get(_FOLDERS))),
    )


Bound = Mapping[str, object]


class _Reader:
    """Follows the calls of a few functions that hold lists of literals; everything else they do is passed over."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self._functions = functions

    def preloads(self, body: list[ast.stmt], bound: Bound, depth: int = 0) -> Iterator[Preload]:
        """Yield the preloads of some statements in their order."""
        tables: dict[str, list[tuple[str, str]]] = {}
        for statement in body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    table = _table(value)
                    if table is not None:
                        tables[name] = table
                case ast.For(iter=source, body=[ast.Expr(value=ast.Call() as call)]):
                    for folder, pattern in tables.get(_iterated(source) or "", []):
                        yield Preload(folder, pattern, self._required(call, bound))
                case ast.Expr(value=ast.Call() as call):
                    yield from self._called(call, bound, depth)
                case ast.Try() | ast.With():
                    yield from self.preloads(statement.body, bound, depth)

    def _called(self, call: ast.Call, bound: Bound, depth: int) -> Iterator[Preload]:
        match call.args:
            case [ast.Constant(value=str(folder)), ast.Constant(value=str(pattern))] if ".so" in pattern:
                yield Preload(folder, pattern, self._required(call, bound))
                return
        function = self._function(call)
        if function is not None and depth < _MAX_DEPTH:
            yield from self.preloads(function.body, self._arguments(call, bound), depth + 1)

    def _function(self, call: ast.Call) -> ast.FunctionDef | None:
        return self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None

    def _arguments(self, call: ast.Call, bound: Bound) -> Bound:
        """Constant arguments of a call, defaults included; ``required`` is the one that matters."""
        function = self._function(call)
        values: dict[str, object] = {}
        if function is not None and function.args.defaults:
            names = function.args.args[-len(function.args.defaults) :]
            pairs = zip(names, function.args.defaults, strict=True)
            values = {name.arg: value.value for name, value in pairs if isinstance(value, ast.Constant)}
        for keyword in call.keywords:
            if isinstance(keyword.value, ast.Constant):
                values[keyword.arg or ""] = keyword.value.value
            elif isinstance(keyword.value, ast.Name):
                values[keyword.arg or ""] = bound.get(keyword.value.id)
        return values

    def _required(self, call: ast.Call, bound: Bound) -> bool:
        return self._arguments(call, bound).get("required", True) is not False


def _table(value: ast.expr) -> list[tuple[str, str]] | None:
    """A list of (folder, pattern) pairs, or a dict of them."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    rows = list(literal.items()) if isinstance(literal, dict) else literal
    if not isinstance(rows, list) or not rows:
        return None
    pairs = [row for row in rows if isinstance(row, tuple) and len(row) == 2 and all(isinstance(x, str) for x in row)]
    return pairs if len(pairs) == len(rows) and all(".so" in pattern for _, pattern in pairs) else None


def _iterated(source: ast.expr) -> str | None:
    """The name that a loop runs over: ``x`` or ``x.items()``."""
    match source:
        case ast.Name(id=name) | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")):
            return name
    return None


def _conditions(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what must be loaded: ``if "libcudart.so" not in maps: return``."""
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.If(
                    test=ast.Compare(left=ast.Constant(value=str(part)), ops=[ast.NotIn()]), body=[ast.Return()]
                ):
                    yield part


def _folders(function: ast.FunctionDef | None) -> Iterator[tuple[str, ...]]:
    """Yield the ``os.path.join(path, …, lib_name)`` calls of ``_get_cuda_dep_paths`` in the order of the source."""
    if function is None:
        return
    path, folder, name = (argument.arg for argument in function.args.args[:3])
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"
    ]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        parts = [_part(argument, {folder: "*folder*", name: "*name*"}) for argument in call.args[1:]]
        starts_at_path = bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == path
        if starts_at_path and all(part is not None for part in parts):
            yield tuple(part for part in parts if part is not None)


def _part(argument: ast.expr, names: Mapping[str, str]) -> str | None:
    match argument:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), ast.FormattedValue()]):
            return f"{text}*cuda*"
    return None

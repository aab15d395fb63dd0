"""How SGLang's kernel package chooses a library for the GPU, read from its source (``sgl_kernel/load_utils.py``)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stack_builder.diagnose.environment.facts import KernelLoader

_RUNTIME = re.compile(r"libcudart\.so\.\d+")
_FOLDER_NAME = "ops_subdir"


def read_kernel_loader(source: bytes, folder: str) -> KernelLoader:
    """Read the choice between sub-folders and the names under which the CUDA runtime is opened.

    The function looks for ``if compute_capability == N: ops_subdir = "smN"``, its branch for any other GPU, and string
    constants that name libcudart. Source of another shape gives a loader without sub-folders.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return KernelLoader(folder)
    exact: dict[int, str] = {}
    default = None
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            chosen = _assigned(node.body)
            if chosen is None:
                continue
            capability = _tested(node.test)
            if capability is not None:
                exact[capability] = chosen
                default = default or next(_branches(node.orelse), None)
    fixed = {
        match[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in [_RUNTIME.search(node.value)]
        if match and not _is_docstring(node, tree)
    }
    follows = any(
        isinstance(part, ast.Constant) and str(part.value).endswith("libcudart.so.")
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    )
    return KernelLoader(folder, tuple(sorted(exact.items())), default, tuple(sorted(fixed)), follows)


def _assigned(body: list[ast.stmt]) -> str | None:
    """The string that a block assigns to the sub-folder's name."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name == _FOLDER_NAME:
                return text
    return None


def _tested(test: ast.expr) -> int | None:
    match test:
        case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Constant(value=int(number))]):
            return number
    return None


def _branches(orelse: list[ast.stmt]) -> Iterator[str]:
    """Sub-folders of the branches behind an exact test, in order."""
    direct = _assigned(orelse)
    if direct is not None:
        yield direct
    for statement in orelse:
        if isinstance(statement, ast.If):
            if _tested(statement.test) is None:
                inner = _assigned(statement.body)
                if inner is not None:
                    yield inner
            yield from _branches(statement.orelse)


def _is_docstring(constant: ast.Constant, tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Expr) and node.value is constant for node in ast.walk(tree))

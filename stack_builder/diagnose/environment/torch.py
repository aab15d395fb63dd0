"""The installed torch, read as text: ``torch/version.py`` through ``ast``, its libraries through the ELF reader."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from stack_builder.diagnose.environment.facts import Torch
from stack_builder.trees import Entry, FileTree

MAX_SOURCE = 1 << 20


def find_torch(tree: FileTree, site: tuple[str, ...], entries: Mapping[str, Entry]) -> Torch | None:
    """Describe the first torch on ``sys.path``, or give None."""
    for folder in (f"{path}/torch" for path in site):
        version_file = f"{folder}/version.py"
        if version_file in entries:
            values = assigned_strings(tree.prefix(version_file, MAX_SOURCE))
            return Torch(
                folder=tree.resolve(folder) or folder,  # its objects are known by their real paths
                version=values.get("__version__") or "unknown",
                cuda=values.get("cuda"),
                hip=values.get("hip") or values.get("rocm"),
                cuda_library=f"{folder}/lib/libtorch_cuda.so" in entries,
            )
    return None


def assigned_strings(source: bytes) -> dict[str, str | None]:
    """Module-level names assigned a literal string or None; nothing for a file that does not parse."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    values: dict[str, str | None] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str | None):
            values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return values

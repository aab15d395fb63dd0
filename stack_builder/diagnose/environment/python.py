"""The interpreter's layout, found in files: version, prefix and the folders of ``sys.path`` that hold packages.

Follows CPython's ``site`` and ``venv``: ``pyvenv.cfg`` (PEP 405), ``lib/pythonX.Y/site-packages``, Debian's
``dist-packages``, folders named in ``.pth`` files. Lines of a ``.pth`` that are code are not run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

from stack_builder.diagnose.environment.facts import Python
from stack_builder.errors import UsageError
from stack_builder.trees import FileTree

MINORS = range(20, 7, -1)
"""Minor versions of Python 3 that are looked for, newest first."""

MAX_TEXT = 1 << 20  # bytes of a pyvenv.cfg or .pth file; they hold a few lines


def find_python(tree: FileTree, prefix: str, environ: Mapping[str, str], where: object) -> Python:
    """Describe the interpreter whose ``sys.prefix`` is ``prefix``.

    Args:
        tree: where to look.
        prefix: absolute path inside the tree; a virtual environment or the root of an installation.
        environ: the environment that the target's processes get; ``PYTHONPATH`` is read from it.
        where: how messages name the target.

    Raises:
        UsageError: there is no ``lib/python3.*/site-packages`` below the prefix.
    """
    settings = _pyvenv(tree, prefix)
    version = _version(tree, prefix)
    if version is None:
        raise UsageError("no lib/python3.*/site-packages in it", where=where, fix="name an environment with packages")
    site = _package_folders(tree, prefix, version)
    if settings.get("include-system-site-packages", "").lower() == "true" and "home" in settings:
        site += _package_folders(tree, posixpath.dirname(settings["home"]), version)
    first = [
        real for path in environ.get("PYTHONPATH", "").split(":") if path[:1] == "/" and (real := tree.resolve(path))
    ]
    return Python(version, prefix, tuple(dict.fromkeys([*first, *site])))


def has_packages(tree: FileTree, prefix: str, path: str = "") -> bool:
    """Whether a prefix has a folder of packages, with ``path`` in it."""
    version = _version(tree, prefix)
    if version is None:
        return False
    return any(tree.resolve(f"{site}/{path}") is not None for site in _package_folders(tree, prefix, version))


def with_pth_folders(tree: FileTree, python: Python, pth_files: Iterable[str]) -> Python:
    """Add the folders that ``.pth`` files name, in the order of the files' names as ``site`` reads them."""
    added = []
    for path in sorted(pth_files):
        folder = posixpath.dirname(path)
        for line in _lines(tree, path):
            if not line.strip() or line.startswith(("#", "import ", "import\t")):
                continue
            named = tree.resolve(posixpath.join(folder, line.strip()))
            if named is not None:
                added.append(named)
    return Python(python.version, python.prefix, tuple(dict.fromkeys([*python.site, *added])))


def interpreter(tree: FileTree, python: Python) -> str | None:
    """The real path of the program that runs extension modules, or None where the target holds none."""
    for name in (f"python{python.version}", "python3", "python"):
        found = tree.resolve(posixpath.join(python.prefix, "bin", name))
        if found is not None:
            return found
    return None


def _pyvenv(tree: FileTree, prefix: str) -> dict[str, str]:
    settings = {}
    for line in _lines(tree, posixpath.join(prefix, "pyvenv.cfg")):
        key, equals, value = line.partition("=")
        if equals:
            settings[key.strip().lower()] = value.strip()
    return settings


def _version(tree: FileTree, prefix: str) -> str | None:
    """The newest Python that has packages below the prefix; a virtual environment has exactly one."""
    for minor in MINORS:
        if _package_folders(tree, prefix, f"3.{minor}"):
            return f"3.{minor}"
    return None


def _package_folders(tree: FileTree, prefix: str, version: str) -> list[str]:
    candidates = [
        f"{prefix}/local/lib/python{version}/dist-packages",
        f"{prefix}/lib/python{version}/site-packages",
        f"{prefix}/lib64/python{version}/site-packages",
    ]
    if tree.resolve(f"{prefix}/lib/python{version}/os.py") is not None:
        candidates.append(f"{prefix}/lib/python3/dist-packages")  # Debian's, shared by the versions it has
    found = [tree.resolve(path) for path in candidates]
    return list(dict.fromkeys(path for path in found if path is not None))  # lib64 is often a link to lib


def _lines(tree: FileTree, path: str) -> list[str]:
    if tree.resolve(path) is None:
        return []
    return re.split(r"\r?\n", tree.prefix(path, MAX_TEXT).decode("utf-8", "replace"))

"""Where a distribution lies on disk: found in files, no interpreter is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.patchset.distribution import Distribution

MAX_FILE = 64 << 20  # bytes; RECORD and modules are far smaller

_FOLDERS = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "local/lib/python3*/dist-packages")
_DEBIAN = "lib/python3/dist-packages"


@dataclass(frozen=True, slots=True)
class Installed:
    """One installed distribution.

    Attributes:
        root: the folder that holds its packages and its ``.dist-info``; real, links followed.
        name: normalised.
        version: as its ``.dist-info`` says.
        dist_info: name of that folder.
    """

    root: Path
    name: str
    version: str
    dist_info: str

    def distribution(self) -> Distribution:
        """Its files as they are from now on; nothing is read yet."""
        return Distribution(self.name, self.version, self.dist_info, self.read)

    def read(self, path: str) -> bytes:
        """The bytes of a path below :attr:`root`.

        Raises:
            FileNotFoundError: nothing is there.
            IntegrityError: the path leads out of the root, or the file is too large.
        """
        file = self.locate(path)
        if file.stat().st_size > MAX_FILE:
            raise IntegrityError(f"larger than {MAX_FILE} bytes", where=file)
        return file.read_bytes()

    def locate(self, path: str) -> Path:
        """Where a relative path lies.

        Raises:
            IntegrityError: a folder on the way is a link that leads out of the root.
        """
        file = self.root / path
        if not file.parent.resolve().is_relative_to(self.root):
            raise IntegrityError(
                f"a folder on the way is a link to {file.parent.resolve()}",
                where=file,
                fix="install the wheel itself, not a link to a checkout",
            )
        return file


def find(target: TargetSpec, name: str) -> Installed:
    """Find one distribution of a ``venv:`` or ``python:`` target.

    Raises:
        UsageError: another kind of target, or the distribution is there not once.
    """
    installed = [one for one in scan(target) if one.name == name]
    if not installed:
        raise UsageError(f"{name} is not installed", where=target.value, fix=f"install {name} or name another target")
    if len(installed) > 1:
        places = ", ".join(f"{one.root / one.dist_info}" for one in installed)
        raise UsageError(f"{name} is installed {len(installed)} times: {places}", fix="remove all but one")
    return installed[0]


def scan(target: TargetSpec) -> list[Installed]:
    """All distributions of a ``venv:`` or ``python:`` target, sorted by name.

    Raises:
        UsageError: another kind of target.
    """
    if target.kind not in ("venv", "python"):
        raise UsageError(
            f"patches are carried out in venv:DIR and python:EXE, not in {target.kind}:",
            fix="give an image its patches with [patches] in stack.toml and stackb build",
        )
    # A virtual environment's interpreter is a link: its folder counts, not what the link leads to.
    prefix = target.path.absolute().parent.parent if target.kind == "python" else target.path
    roots = {folder.resolve() for pattern in (*_FOLDERS, _DEBIAN) for folder in prefix.glob(pattern)}
    found = []
    for root in roots:
        for folder in root.glob("*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found.append(Installed(root, canonicalize_name(name), version, folder.name))
    return sorted(found, key=lambda one: (one.name, str(one.root)))

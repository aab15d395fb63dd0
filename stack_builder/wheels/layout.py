"""Where a wheel's entries go once it is installed: what locks, images and trees go by.

PyPA's binary distribution format: what lies below ``{distribution}-{version}.data/`` goes to the scheme that the next
part of the path names, everything else to site-packages. The format says nothing of where the headers scheme lies in a
virtual environment, where ``sysconfig`` would mean the Python that all environments share. pip and uv both take
``include/site/python3.x/``, and there a folder named as the requirement is, which in a lock is the normalised name.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.names import parse as parse_name

FIX = "report it to the wheel's authors, or pin another version"

_SCHEMES = {"purelib": "lib", "platlib": "lib", "scripts": "scripts", "headers": "headers", "data": "data"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one wheel.

    Attributes:
        filename: of the wheel.
        distribution: normalised name.
        version: as the ``.dist-info`` folder writes it.
        dist_info: that folder.
    """

    filename: str
    distribution: str
    version: str
    dist_info: str

    def place(self, name: str) -> tuple[str, str]:
        """Give the scheme of an entry, and its path below that scheme's folder.

        Returns:
            ``lib`` (site-packages), ``scripts``, ``headers`` or ``data`` (the prefix itself), and the path.

        Raises:
            IntegrityError: it lies below ``.data`` and in no scheme.
        """
        folder = f"{self.dist_info.removesuffix('.dist-info')}.data/"
        if not name.startswith(folder):
            return "lib", name
        scheme, _, path = name.removeprefix(folder).partition("/")
        if scheme not in _SCHEMES or not path:
            where = f"{self.filename}: {name}"
            raise IntegrityError("is in no scheme that the wheel specification knows", where=where, fix=FIX)
        return _SCHEMES[scheme], path


def read_layout(archive: WheelArchive) -> Layout:
    """Find the folders of a wheel.

    Raises:
        IntegrityError: it has no ``.dist-info`` folder, several, or that of another distribution.
        UsageError: its file name is none of a wheel.
    """
    distribution = parse_name(archive.filename).distribution
    folders = {folder for entry in archive.files() for folder, slash, _ in [entry.name.partition("/")] if slash}
    found = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(found) != 1:
        raise IntegrityError(f"has {len(found)} .dist-info folders instead of one", where=archive.filename, fix=FIX)
    name, _, version = found[0].removesuffix(".dist-info").partition("-")
    if canonicalize_name(name) != distribution:
        raise IntegrityError(f"holds another distribution, {found[0]}", where=archive.filename, fix=FIX)
    return Layout(archive.filename, distribution, version, found[0])


def venv_path(scheme: str, path: str, distribution: str, python: str) -> str:
    """Give where a file lands below the prefix of a virtual environment.

    Args:
        scheme: as :meth:`Layout.place` gives it.
        path: below that scheme's folder.
        distribution: normalised name of the wheel's distribution.
        python: such as ``3.11``.
    """
    match scheme:
        case "lib":
            return f"lib/python{python}/site-packages/{path}"
        case "scripts":
            return f"bin/{path}"
        case "headers":
            return f"include/site/python{python}/{distribution}/{path}"
        case _:
            return path

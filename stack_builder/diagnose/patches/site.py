"""Where a distribution lies on disk: found in files, no interpreter is run."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.files import read_regular
from stack_builder.patchset.distribution import Distribution

JOURNAL = ".stackb-journal"  # what an interrupted run leaves beside the packages
JOURNAL_FILE = "journal.json"  # in it, from the commit of the run to its end
MAX_FILE = 64 << 20  # bytes; RECORD and modules are far smaller

_FOLDERS = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "local/lib/python3*/dist-packages",  # Debian's: what pip installs
    "lib/python3/dist-packages",  # Debian's: what apt installs
)


@dataclass(frozen=True, slots=True)
class Site:
    """One folder of installed packages.

    Attributes:
        root: the folder, real, links followed.
    """

    root: Path

    @property
    def interrupted(self) -> bool:
        """Whether a patch run was ended after its commit, so that old and new files may lie side by side."""
        return (self.root / JOURNAL / JOURNAL_FILE).is_file()

    def read(self, path: str) -> bytes:
        """The bytes of a path below :attr:`root`.

        Raises:
            FileNotFoundError: nothing is there.
            IntegrityError: the path leads out of the root, or the file is no regular one, or too large.
        """
        return read_regular(self.locate(path), MAX_FILE)

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

    def distributions(self) -> dict[str, Distribution]:
        """What is installed, by normalised name. Reads as the files are from now on.

        Raises:
            UsageError: a distribution is there in two versions.
        """
        found: dict[str, Distribution] = {}
        for folder in sorted(self.root.glob("*.dist-info")):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            key = canonicalize_name(name)
            if key in found:
                what = f"{key} is installed twice: {found[key].version} and {version}"
                raise UsageError(what, where=self.root, fix="reinstall it")
            found[key] = Distribution(key, version, folder.name, self.read)
        return found


def find(target: TargetSpec, names: Set[str]) -> Site:
    """Find the folder of a ``venv:`` or ``python:`` target that holds a distribution of ``names``.

    Raises:
        UsageError: another kind of target; no folder holds one, or several do.
    """
    sites = [site for site in _all(target) if not names.isdisjoint(site.distributions())]
    if not sites:
        wanted = " or ".join(sorted(names))
        raise UsageError(f"{wanted} is not installed", where=target.value, fix="install it or name another target")
    return _only(sites, target)


def find_patched(target: TargetSpec) -> Site | None:
    """Find the folder of a ``venv:`` or ``python:`` target in which something is patched, or half so.

    Raises:
        UsageError: another kind of target, or several folders are.
    """
    signs = ("*.dist-info/stackb/patches.json", JOURNAL)
    sites = [site for site in _all(target) if any(any(site.root.glob(sign)) for sign in signs)]
    return _only(sites, target) if sites else None


def _only(sites: list[Site], target: TargetSpec) -> Site:
    if len(sites) > 1:
        places = " and ".join(str(site.root) for site in sites)
        raise UsageError(f"packages are in {places}", where=target.value, fix="remove all but one")
    return sites[0]


def _all(target: TargetSpec) -> list[Site]:
    if target.kind not in ("venv", "python"):
        raise UsageError(
            f"patches are carried out in venv:DIR and python:EXE, not in {target.kind}:",
            fix="give an image its patches with [patches] in stack.toml and stackb build",
        )
    # A virtual environment's interpreter is a link: its own folder counts, not what the link leads to.
    prefix = target.path.absolute().parent.parent if target.kind == "python" else target.path
    return [Site(root) for root in sorted({folder.resolve() for each in _FOLDERS for folder in prefix.glob(each)})]

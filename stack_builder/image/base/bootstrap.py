"""From pinned packages to the tar of a root file system, and its unpacked twin for running its programs.

mmdebstrap installs exactly the given files, from a repository made of them alone, with the clock fixed. What it writes
is then normalised here: what belongs to a machine or a moment is dropped, so that neither the host nor the version of
mmdebstrap shows.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from stack_builder.errors import MachineError
from stack_builder.image.base.contained import run_contained
from stack_builder.image.base.packages import location
from stack_builder.image.base.recipe import Recipe
from stack_builder.image.base.unpack import unpack
from stack_builder.image.rootfs import readable_folder
from stack_builder.image.settings import EPOCH
from stack_builder.stack.receipt import DebianPackage

VERSION = 2
"""Part of the key of every cached base. Raise it whenever the same packages would give other bytes."""

# Merged /usr, as Debian 12 demands; newer mmdebstrap does this by itself, which ln then respects.
_MERGE_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; [ -e "$1/$d" ] || ln -s "usr/$d" "$1/$d"; done'

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME")  # no proxy: the packages are on disk

_DROPPED = re.compile(
    r"dev/.+"  # engines mount their own
    r"|etc/(hostname|resolv\.conf|machine-id)"  # so do they these
    r"|etc/apt/(sources\.list|sources\.list\.d/.+|apt\.conf\.d/99mmdebstrap)"  # names this build's folder
    r"|etc/dpkg/dpkg\.cfg\.d/99mmdebstrap"
    r"|var/cache/(apt|debconf|ldconfig)/.+"
    r"|var/lib/apt/.+"
    r"|var/lib/dpkg/(available|.+-old|lock|lock-frontend)"
    r"|var/log/.+"
    r"|(run|tmp|var/tmp)/.+"
)
_FIELDS_TO_DROP = re.compile(r"^(Filename|Size|SHA256|MD5sum|SHA1):.*\n", re.MULTILINE)


def bootstrap(recipe: Recipe, packages: Iterable[DebianPackage], store: Path, work: Path) -> Path:
    """Install packages into a new root file system.

    Args:
        recipe: names the suite and what to leave out.
        packages: all of them; their files are in ``store``.
        store: see :func:`stack_builder.image.base.packages.fetch`.
        work: an empty folder on the same file system as ``store``.

    Returns:
        the tar that mmdebstrap wrote.

    Raises:
        MachineError: mmdebstrap is missing or fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise MachineError(
            "mmdebstrap is missing", fix="install it (apt-get install mmdebstrap) or give --base oci:PATH"
        )
    repository = work / "repository"
    _write_repository(repository, recipe.suite, packages, store)
    result = work / "raw.tar"
    filters = [f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.exclude]
    filters += [f"--dpkgopt=path-include={pattern}" for pattern in recipe.include]
    argv = [
        "mmdebstrap",
        "--variant=essential",
        "--format=tar",
        f"--include={','.join(recipe.packages)}",
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",  # no fsync per file: the tree is thrown away
        *filters,
        f"--setup-hook={_MERGE_USR}",
        recipe.suite,
        str(result),
        f"deb [trusted=yes] copy:{repository} ./",
    ]
    done = run_contained(argv, _environment(work))
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["E: no message"]
        raise MachineError(
            f"mmdebstrap failed: {complaints[0][3:300]}",
            fix="see mmdebstrap's manual on --mode for what it needs: root, or user namespaces with newuidmap",
        )
    return result


def _environment(work: Path) -> dict[str, str]:
    """What mmdebstrap and maintainer scripts see; any other variable of the caller's could change what they write."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    fixed = {"SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8", "TMPDIR": str(work)}
    # debpython, which compiles the packages' modules, would itself be compiled when it is imported: by time stamps
    return {**kept, **fixed, "PYTHONDONTWRITEBYTECODE": "1"}


def normalise(raw: Path, result: Path, tree: Path) -> str:
    """Write the tar of the base layer, and unpack it.

    Args:
        raw: what mmdebstrap wrote.
        result: the layer's tar.
        tree: a new folder for the files, all of them owned by whoever runs this and readable by all.

    Returns:
        sha256 of ``result``.

    Raises:
        IntegrityError: a member would lie outside ``tree``.
    """
    readable_folder(tree)
    with tarfile.open(raw) as source, result.open("wb") as file:
        target = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed below
        for member in source:
            path = member.name.removeprefix("./").strip("/")
            if path in ("", ".") or _DROPPED.fullmatch(path) or member.isdev():
                continue
            content = source.extractfile(member) if member.isreg() else None
            plain = _plain(member, path)
            target.addfile(plain, content)
            unpack(source, member, plain, tree)
        target.close()
    with result.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """The member with what a rebuild repeats: numeric owner, mode, and a time no later than the fixed one."""
    plain = tarfile.TarInfo(path)
    plain.type, plain.mode, plain.uid, plain.gid = member.type, member.mode, member.uid, member.gid
    plain.size = member.size if member.isreg() else 0
    plain.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
    plain.mtime = min(int(member.mtime), EPOCH)
    return plain


def _write_repository(folder: Path, suite: str, packages: Iterable[DebianPackage], store: Path) -> None:
    """A flat repository of just these packages, as apt reads it. Trusted: their hashes were checked."""
    folder.mkdir()
    stanzas = []
    for package in packages:
        name = f"{package.name}_{package.architecture}.deb"
        os.link(location(store, package), folder / name)
        control = subprocess.run(
            ["dpkg-deb", "--field", str(folder / name)], capture_output=True, text=True, check=True
        ).stdout
        kept = _FIELDS_TO_DROP.sub("", control)
        stanzas.append(f"{kept}Filename: ./{name}\nSize: {package.size}\nSHA256: {package.sha256}\n")
    index = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(index)
    (folder / "Release").write_text(
        f"Suite: {suite}\nCodename: {suite}\nDate: Thu, 01 Jan 1970 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    )

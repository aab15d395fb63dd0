"""Debian packages: which ones a recipe needs (apt resolves), and their files (by hash, from any mirror).

Apt runs with state of its own, so the host's package lists and installed packages neither matter nor change, and no
privilege is needed. Packages come from where apt is configured to get them on this host, or from
``STACKB_DEBIAN_MIRROR``: one or more addresses, separated by spaces.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.image.base.recipe import BaseLock, Recipe
from stack_builder.progress import Progress
from stack_builder.stack.receipt import DebianPackage

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_HELPER = "/usr/lib/apt/apt-helper"
_PRINTED = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>[0-9]+) SHA256:(?P<sha256>[0-9a-f]{64})")
_LACKS = re.compile(r"404|not found", re.IGNORECASE)
_BATCH = 40  # packages per call of apt-helper: each call fetches one after another, and reports at its end

_APT_CONF = """\
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Etc::sourcelist "{root}/sources.list";
Dir::Etc::sourceparts "{root}/none";
Dir::Etc::preferencesparts "{root}/none";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root"; // as whoever runs this
APT::Update::Error-Mode "any";
Acquire::ForceHash "SHA256";
Acquire::Languages "none";
pkgCacheGen::ForceEssential ","; // apt itself is not needed in the image
"""


def mirrors() -> dict[str, str]:
    """Addresses of package archives by address, each with the release that apt reads from it.

    Raises:
        MachineError: apt is missing, or reads from nowhere.
    """
    if given := os.environ.get("STACKB_DEBIAN_MIRROR"):
        return {uri.rstrip("/"): "-security" if "security" in uri else "" for uri in given.split()}
    if shutil.which("apt-get") is None:
        raise MachineError("apt-get is missing", fix="install apt and mmdebstrap, or give --base oci:PATH")
    listed = _apt(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"], None)
    found: dict[str, str] = {}
    for line in listed.splitlines():
        uri, _, release = line.partition(" ")
        if uri.startswith(("http://", "https://", "file:", "copy:")):
            found.setdefault(uri.rstrip("/"), "-security" if release.endswith("-security") else "")
    if not found:
        raise MachineError("apt reads from no archive", fix="set STACKB_DEBIAN_MIRROR to a Debian mirror")
    return found


def resolve(recipe: Recipe, architecture: str, root: Path) -> BaseLock:
    """Ask apt which packages the recipe needs now.

    Args:
        recipe: the recipe.
        architecture: ``amd64``.
        root: an empty folder for apt's state.

    Raises:
        MachineError: no apt, no network, or the mirror does not have the suite.
    """
    archives = mirrors()
    for folder in ("state/lists/partial", "cache/archives/partial", "none"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    signed = f" [signed-by={_KEYRING}]" if _KEYRING.is_file() else ""
    suites = {"": (recipe.suite, f"{recipe.suite}-updates"), "-security": (f"{recipe.suite}-security",)}
    lines = [f"deb{signed} {uri} {suite} main\n" for uri, pocket in archives.items() for suite in suites[pocket]]
    (root / "sources.list").write_text("".join(lines))
    config = root / "apt.conf"
    config.write_text(_APT_CONF.format(root=root, architecture=architecture))
    _apt(["apt-get", "update", "-q"], config)
    printed = _apt(["apt-get", "install", "-qq", "--yes", "--print-uris", "?essential", *recipe.packages], config)
    packages = printed_packages(printed, archives)
    if not packages:
        raise MachineError("apt named no packages", where=recipe.suite, fix="check apt's configuration")
    return BaseLock(recipe.sha256, architecture, packages)


def printed_packages(text: str, archives: Iterable[str]) -> tuple[DebianPackage, ...]:
    """Read what ``apt-get install --print-uris`` prints; sorted by name.

    Args:
        text: of its lines, those that name a package.
        archives: addresses that are cut off a package's own.
    """
    return tuple(sorted((_package(match, archives) for match in _PRINTED.finditer(text)), key=lambda p: p.name))


def fetch(packages: Sequence[DebianPackage], store: Path, progress: Progress) -> list[DebianPackage]:
    """Bring packages into ``store``, each under its hash.

    Returns:
        those that no mirror has (any more).

    Raises:
        MachineError: apt is missing or reads from nowhere, or no mirror answers.
    """
    store.mkdir(parents=True, exist_ok=True)
    missing = [package for package in packages if not location(store, package).is_file()]
    if not missing:
        return []
    complaint: str | None = None
    with progress.task("Debian packages", sum(p.size for p in missing)) as task:
        for uri in mirrors():
            for start in range(0, len(missing), _BATCH):
                done, unanswered = _download(uri, missing[start : start + _BATCH], store)
                complaint = complaint or unanswered
                task.advance(sum(package.size for package in done))
            missing = [package for package in missing if not location(store, package).is_file()]
    if missing and complaint:
        fix = "check the network and apt's sources, or set STACKB_DEBIAN_MIRROR"
        raise MachineError(f"a Debian mirror does not answer: {complaint[:200]}", where=missing[0].name, fix=fix)
    return missing


def location(store: Path, package: DebianPackage) -> Path:
    """Where a package is kept."""
    return store / f"{package.sha256}.deb"


def verify(packages: Iterable[DebianPackage], store: Path) -> None:
    """Check that the kept files still have their hashes; a file that has not is removed.

    Raises:
        IntegrityError: names the package.
    """
    for package in packages:
        path = location(store, package)
        with path.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == package.sha256
        if not intact:
            path.unlink()
            raise IntegrityError("bytes changed on disk; removed", where=path, fix="run the same command again")


def _package(match: re.Match[str], archives: Iterable[str]) -> DebianPackage:
    uri = match["uri"]
    root = max((each for each in archives if uri.startswith(f"{each}/")), key=len, default="")
    # apt writes NAME_VERSION_ARCHITECTURE.deb with the epoch's colon as %3a
    parts = unquote(match["file"]).split("_")
    if len(parts) != 3 or len(match["size"]) > 18:
        raise MachineError(f"names a package in an odd way: {match['file'][:200]}", where="apt-get")
    name, version, rest = parts
    return DebianPackage(
        name=name,
        version=version,
        architecture=rest.removesuffix(".deb"),
        sha256=match["sha256"],
        size=int(match["size"]),
        path=uri.removeprefix(f"{root}/"),
    )


def _download(uri: str, packages: Sequence[DebianPackage], store: Path) -> tuple[list[DebianPackage], str | None]:
    """Fetch with apt's own downloader: it knows the host's proxies and credentials, and checks the hash.

    Returns:
        what was fetched, and apt's words where something failed for another reason than that the mirror lacks it.
    """
    parts = {package: store / f"{package.sha256}.part" for package in packages}
    argv = [_HELPER, "-qq", "-o", "APT::Sandbox::User=root", "download-file"]
    for package, part in parts.items():
        argv += [f"{uri}/{package.path}", str(part), f"SHA256:{package.sha256}"]
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        said = subprocess.run(
            argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False
        ).stderr
    except FileNotFoundError as error:
        raise MachineError("apt-helper is missing", where=_HELPER, fix="install apt") from error
    done = []
    for package, part in parts.items():
        # Looked at again: a file that apt-helper left behind after a failed check must not pass.
        if part.is_file() and hashlib.sha256(part.read_bytes()).hexdigest() == package.sha256:
            part.replace(location(store, package))
            done.append(package)
        part.unlink(missing_ok=True)
    failures = (line for line in said.splitlines() if line.startswith("E: Failed to fetch"))
    return done, next((line[3:] for line in failures if not _LACKS.search(line)), None)


def _apt(argv: list[str], config: Path | None) -> str:
    environment = {**os.environ, "LC_ALL": "C"} | ({"APT_CONFIG": str(config)} if config else {})
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False)
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or ["no message"]
        raise MachineError(
            f"{argv[1]} failed: {complaints[0][:300]}",
            where="apt-get",
            fix="check the network and apt's sources, or set STACKB_DEBIAN_MIRROR",
        )
    return done.stdout

"""Installed distributions and who owns which file: ``METADATA``, ``WHEEL`` and ``RECORD`` of every ``.dist-info``.

Formats: PyPA's core metadata and recording-installed-projects specifications.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from stack_builder.diagnose.environment.facts import Distribution, SharedFile
from stack_builder.trees import Entry, FileTree

MAX_METADATA = 4 << 20  # bytes; headers stand first, the rest is the description
MAX_RECORD = 64 << 20
MAX_HASHED = 512 << 20  # bytes read per check to say whose content a contested file has
MAX_NAMED = 20  # missing files that are named one by one


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the ``.dist-info`` folders of an environment say.

    Attributes:
        distributions: sorted by name and folder.
        owners: path inside the tree to ``name version``; for contested paths the last by name.
        shared: contested paths.
    """

    distributions: tuple[Distribution, ...]
    owners: Mapping[str, str]
    shared: tuple[SharedFile, ...]


@dataclass(frozen=True, slots=True)
class _Claim:
    owner: str
    sha256: str  # as RECORD writes it: urlsafe base64 without padding
    size: int | None


def read_inventory(tree: FileTree, entries: Mapping[str, Entry]) -> Inventory:
    """Read every ``.dist-info`` among ``entries`` (the files of the site folders, by path)."""
    distributions = []
    claims: dict[str, list[_Claim]] = defaultdict(list)
    for path in sorted(entries):
        folder, _, name = path.rpartition("/")
        if name != "METADATA" or not folder.endswith(".dist-info"):
            continue
        found = _read_distribution(tree, folder, entries)
        if found is None:
            continue
        absent = 0
        named: list[str] = []
        for file, claim in _read_record(tree, folder, str(found)):
            claims[file].append(claim)
            if _should_exist(file, folder) and file not in entries:
                absent += 1
                if len(named) < MAX_NAMED:
                    named.append(file)
        distributions.append(
            Distribution(found.name, found.version, found.folder, found.tags, found.requires, tuple(named), absent)
        )
    owners = {path: path_claims[-1].owner for path, path_claims in claims.items()}
    contested = {path: path_claims for path, path_claims in claims.items() if len(path_claims) > 1}
    return Inventory(
        tuple(sorted(distributions, key=lambda d: (d.name, d.folder))),
        owners,
        tuple(_shared_files(tree, contested, entries)),
    )


def _read_distribution(tree: FileTree, folder: str, entries: Mapping[str, Entry]) -> Distribution | None:
    headers = _headers(tree.prefix(f"{folder}/METADATA", MAX_METADATA))
    names, versions = headers.get("name"), headers.get("version")
    if not names or not versions:
        return None
    wheel = f"{folder}/WHEEL"
    tags = _headers(tree.prefix(wheel, MAX_METADATA)).get("tag", []) if wheel in entries else []
    requires = tuple(headers.get("requires-dist", []))
    return Distribution(canonicalize_name(names[0]), versions[0], folder, tuple(tags), requires)


def _headers(data: bytes) -> dict[str, list[str]]:
    """The fields of a METADATA or WHEEL file, by lower-case name; continuation lines are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in data.decode("utf-8", "replace").splitlines():
        if not line:
            break
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            found[name.lower()].append(value.strip())
    return found


def _read_record(tree: FileTree, folder: str, owner: str) -> Iterable[tuple[str, _Claim]]:
    """Yield each file of a RECORD with its claim; paths are made absolute inside the tree."""
    record = f"{folder}/RECORD"
    if tree.resolve(record) is None:
        return
    site = posixpath.dirname(folder)
    rows = csv.reader(tree.prefix(record, MAX_RECORD).decode("utf-8", "replace").splitlines())
    for row in rows:
        if not row or not row[0]:
            continue
        path = row[0]
        absolute = f"{site}/{path}" if not path.startswith(("/", ".")) else posixpath.normpath(f"{site}/{path}")
        digest = row[1].partition("=")[2] if len(row) > 1 else ""
        size = int(row[2]) if len(row) > 2 and row[2].isdecimal() else None
        yield absolute, _Claim(owner, digest, size)


def _should_exist(path: str, folder: str) -> bool:
    """Whether a path of a RECORD lies among the packages; bytecode comes and goes, and installers drop some files."""
    site = posixpath.dirname(folder)
    return path.startswith(f"{site}/") and not path.endswith(".pyc") and not path.startswith(f"{folder}/")


def _shared_files(
    tree: FileTree, contested: Mapping[str, list[_Claim]], entries: Mapping[str, Entry]
) -> Iterable[SharedFile]:
    """Keep the contested paths whose claims differ, and say whose content lies there."""
    budget = MAX_HASHED
    for path, claims in sorted(contested.items()):
        if path not in entries or len({claim.sha256 for claim in claims}) == 1:
            continue
        size = entries[path].size
        fitting = [claim for claim in claims if claim.size in (None, size)]
        if len(fitting) > 1 and size <= budget:
            budget -= size
            digest = _sha256(tree, path)
            fitting = [claim for claim in fitting if claim.sha256 == digest]
        matching = fitting[0].owner if len(fitting) == 1 else None
        yield SharedFile(path, tuple(claim.owner for claim in claims), matching)


def _sha256(tree: FileTree, path: str) -> str:
    with tree.open(path) as data:
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

"""Installed distributions and who owns which file: ``METADATA``, ``WHEEL`` and ``RECORD`` of every ``.dist-info``.

Formats: PyPA's core metadata and recording-installed-projects specifications. A CUDA stack has 75,000 RECORD lines, so
the loop over them does little per line.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packaging.utils import canonicalize_name

from stack_builder.diagnose.environment.facts import Distribution, Resized, SharedFile
from stack_builder.trees import Entry, FileTree

MAX_METADATA = 4 << 20  # bytes; headers stand first, the rest is the description
MAX_RECORD = 64 << 20
MAX_HASHED = 512 << 20  # bytes read per check to say whose content a contested file has
MAX_NAMED = 100  # missing or damaged files that are named one by one
SHARED_OBJECT = re.compile(r"\.so(\.[\w.]+)?$")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the ``.dist-info`` folders of an environment say.

    Attributes:
        distributions: sorted by name and folder.
        owners: path inside the tree to ``name version``; for contested paths the last one read.
        shared: contested paths.
    """

    distributions: tuple[Distribution, ...]
    owners: Mapping[str, str]
    shared: tuple[SharedFile, ...]


class _Claim(NamedTuple):
    owner: str
    digest: str  # as RECORD writes it: sha256= and urlsafe base64 without padding
    size: str  # empty where RECORD gives none


def read_inventory(tree: FileTree, site: Sequence[str], entries: Mapping[str, Entry]) -> Inventory:
    """Read every ``.dist-info`` directly below a ``site`` folder.

    Args:
        tree: where to read.
        site: the folders of ``sys.path``.
        entries: the files below them, by path.
    """
    distributions: list[Distribution] = []
    claims: dict[str, _Claim] = {}
    contested: dict[str, list[_Claim]] = defaultdict(list)
    for folder in _dist_infos(site, entries):
        found = _read_distribution(tree, folder, entries)
        if found is None:
            continue
        owner = str(found)
        absent: list[str] = []
        resized: list[Resized] = []
        for path, digest, size in _read_record(tree, folder):
            claim = _Claim(owner, digest, size)
            earlier = claims.setdefault(path, claim)
            if earlier is not claim:
                contested[path] = [*(contested.get(path) or [earlier]), claim]
            entry = entries.get(path)
            if entry is None:
                if _should_exist(path, folder):
                    absent.append(path)
            elif size != str(entry.size) and size.isdecimal() and _tells_damage(entry, folder):
                resized.append(Resized(path, entry.size, int(size)))
        absent.sort(key=lambda path: not SHARED_OBJECT.search(path))
        named = tuple(absent[:MAX_NAMED])
        distributions.append(
            dataclasses.replace(found, absent=named, absent_count=len(absent), resized=tuple(resized[:MAX_NAMED]))
        )
    owners = {path: claim.owner for path, claim in claims.items()}
    distributions = [
        dataclasses.replace(d, resized=tuple(r for r in d.resized if r.path not in contested)) if d.resized else d
        for d in distributions
    ]
    owners.update({path: several[-1].owner for path, several in contested.items()})
    return Inventory(
        tuple(sorted(distributions, key=lambda d: (d.name, d.folder))),
        owners,
        tuple(_shared_files(tree, contested, entries)),
    )


def _dist_infos(site: Sequence[str], entries: Mapping[str, Entry]) -> list[str]:
    """The ``.dist-info`` folders directly below a site folder; those that packages vendor are nobody's installation."""
    folders = (path.removesuffix("/METADATA") for path in entries if path.endswith(".dist-info/METADATA"))
    return sorted(folder for folder in folders if posixpath.dirname(folder) in site)


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
    for line in data.partition(b"\n\n")[0].decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            found[name.lower()].append(value.strip())
    return found


def _read_record(tree: FileTree, folder: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path, digest, size) of each line of a RECORD; paths are made absolute inside the tree."""
    record = f"{folder}/RECORD"
    if tree.resolve(record) is None:
        return
    site = posixpath.dirname(folder)
    text = tree.prefix(record, MAX_RECORD).decode("utf-8", "replace")
    rows: Iterable[list[str]]
    rows = csv.reader(text.splitlines()) if '"' in text else (line.rsplit(",", 2) for line in text.splitlines())
    for row in rows:
        if len(row) != 3 or not row[0]:
            continue
        path = f"{site}/{row[0]}"
        yield posixpath.normpath(path) if row[0][0] in "./" else path, row[1], row[2]


def _should_exist(path: str, folder: str) -> bool:
    """Whether a path of a RECORD lies among the packages; bytecode comes and goes, and installers drop some files."""
    site = posixpath.dirname(folder)
    elsewhere = (f"{folder}/", f"{folder.removesuffix('.dist-info')}.data/")  # .data goes to its schemes' folders
    return path.startswith(f"{site}/") and not path.endswith(".pyc") and not path.startswith(elsewhere)


def _tells_damage(entry: Entry, folder: str) -> bool:
    """Whether another size than RECORD's is damage; text may have been edited or patched, but not to nothing."""
    if entry.link is not None:
        return False
    return SHARED_OBJECT.search(entry.path) is not None or (not entry.size and _should_exist(entry.path, folder))


def _shared_files(
    tree: FileTree, contested: Mapping[str, Sequence[_Claim]], entries: Mapping[str, Entry]
) -> Iterator[SharedFile]:
    """Keep the contested paths whose claims differ, and say whose content lies there."""
    budget = MAX_HASHED
    for path, claims in sorted(contested.items()):
        if path not in entries or len({claim.digest for claim in claims}) == 1:
            continue
        size = entries[path].size
        fitting = [claim for claim in claims if claim.size in ("", str(size))]
        if len(fitting) > 1 and size <= budget:
            budget -= size
            digest = _sha256(tree, path)
            fitting = [claim for claim in fitting if claim.digest == digest]
        matching = fitting[0].owner if len(fitting) == 1 else None
        yield SharedFile(path, tuple(claim.owner for claim in claims), matching)


def _sha256(tree: FileTree, path: str) -> str:
    with tree.open(path) as data:
        return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

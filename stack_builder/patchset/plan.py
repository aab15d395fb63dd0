"""From a series to bytes: which files of a distribution have to hold what. The same for a disk and for an image."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.patchset.distribution import Distribution, make_manifest
from stack_builder.patchset.model import Patch
from stack_builder.patchset.states import State, Status, assess


@dataclass(frozen=True, slots=True)
class Plan:
    """What changes, and nothing else; empty where everything is as wanted.

    Attributes:
        modules: path -> bytes so far, of the modules that change; their bytecode is stale afterwards.
        writes: path -> new bytes, the modules first, RECORD last.
        removes: paths that go.
    """

    modules: Mapping[str, bytes]
    writes: Mapping[str, bytes]
    removes: tuple[str, ...] = ()

    def diff(self) -> bytes:
        """The change of the modules as a unified diff that ``patch -p1`` takes in site-packages."""
        return b"".join(unified_diff(path, before, self.writes[path]) for path, before in self.modules.items())


def plan(distribution: Distribution, patches: Iterable[Patch]) -> Plan:
    """What it takes to have exactly this series applied, whatever is applied now; an empty one reverts.

    Raises:
        IntegrityError: a file has drifted, or an operation gives other bytes than those recorded.
        UsageError: a patch of the series is not needed or cannot be applied.
    """
    patches = tuple(patches)
    _check_drift(distribution)
    pristine = distribution.pristine()
    files: dict[str, bytes] = {}
    for status in assess(patches, pristine):
        _check(status, pristine, fresh=set(status.patch.spec.files) - set(files))
        files |= status.files or {}
    record, kept = pristine.record, {}
    if files:
        originals = (record.data, *(pristine.read(path) for path in files))
        kept = {distribution.original_path(hashlib.sha256(data).hexdigest()): data for data in originals}
        kept[distribution.manifest_path] = make_manifest(pristine, patches, files).to_json()
    reverted = {file.path for file in distribution.manifest.files} - set(files) if distribution.manifest else set()
    target = files | {path: pristine.read(path) for path in sorted(reverted)}
    modules = {path: distribution.read(path) for path, data in target.items() if distribution.read(path) != data}
    target |= kept | {distribution.record_path: record.edited(files, kept)}
    writes = {path: data for path, data in target.items() if distribution.current(path) != data}
    return Plan(modules, writes, tuple(path for path in distribution.kept_paths if path not in kept))


def patched_files(distribution: Distribution, patches: Iterable[Patch]) -> Mapping[str, bytes]:
    """Path -> bytes of all files that a series changes or adds, RECORD and manifest included: one layer of an image.

    Raises:
        IntegrityError, UsageError: as :func:`plan`.
    """
    return plan(distribution, patches).writes


def unified_diff(path: str, before: bytes, after: bytes) -> bytes:
    """One file's change, with the marker for a last line without newline; empty where nothing changes."""
    old, new = (re.findall(rb"[^\n]*\n|[^\n]+", data) for data in (before, after))
    diff = difflib.diff_bytes(difflib.unified_diff, old, new, f"a/{path}".encode(), f"b/{path}".encode())
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in diff)


def _check_drift(distribution: Distribution) -> None:
    for path in (file.path for file in distribution.manifest.files) if distribution.manifest else ():
        if reason := distribution.drift(path):
            raise _drifted(reason, distribution)
    if reason := distribution.record_drift():
        raise _drifted(reason, distribution)


def _check(status: Status, pristine: Distribution, fresh: set[str]) -> None:
    """Stop at a patch that cannot or need not be applied; ``fresh`` are files no earlier patch has touched."""
    patch, where = status.patch, f"{pristine.name} {pristine.version}"
    if status.state is State.OBSOLETE:
        raise UsageError(f"patch '{patch.id}' is unused: {status.detail}", where=where, fix="take it out of the series")
    if status.state is State.DRIFTED:
        raise _drifted(status.detail, pristine)
    if status.state is State.CONFLICT:
        raise UsageError(
            f"patch '{patch.id}' does not fit: {status.detail}", where=where, fix="take it out of the series"
        )
    for path, data in (status.files or {}).items():
        known = patch.spec.hashes(pristine.version, path)
        if known and path in fresh and hashlib.sha256(data).hexdigest() != known.after:
            raise IntegrityError(f"patch '{patch.id}' gives other bytes than it records for {path}", where=where)


def _drifted(reason: str, distribution: Distribution) -> IntegrityError:
    fix = f"reinstall {distribution.name}=={distribution.version} and apply again; nothing was changed"
    return IntegrityError(reason, where=distribution.dist_info, fix=fix)

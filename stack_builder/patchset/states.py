"""The state of each patch of a series against one distribution. Judges only; writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Hardware, Patch, Read
from stack_builder.patchset.source import AnchorError


class State(StrEnum):
    """Where a patch stands. Exactly one holds; the order of this list is not that of the checks."""

    APPLIES = "applies"
    APPLIED = "applied"
    OBSOLETE = "obsolete-upstream"
    NO_EFFECT = "no-effect-here"
    DRIFTED = "drifted"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one patch.

    Attributes:
        patch: the patch.
        state: its state.
        detail: why, in a sentence; empty for a patch that simply applies.
        no_effect: why it changes nothing on the hardware given, else None; also for one that is applied.
        files: path -> new bytes, for a patch that can be applied; after those before it in the series.
    """

    patch: Patch
    state: State
    detail: str = ""
    no_effect: str | None = None
    files: Mapping[str, bytes] | None = None


def assess(
    patches: Iterable[Patch], distribution: Distribution, hardware: Hardware | None = None
) -> tuple[Status, ...]:
    """Judge each patch, each on what those before it leave.

    Raises:
        UsageError: the distribution has no RECORD.
        IntegrityError: its patch manifest is damaged.
    """
    hardware = hardware or Hardware()
    files: dict[str, bytes] = {}
    result = []
    for patch in patches:
        no_effect = next((entry.reason for entry in patch.spec.no_effect if entry.on(hardware)), None)
        status = _judge(patch, distribution, files, no_effect)
        files |= status.files or {}
        result.append(status)
    return tuple(result)


def _judge(patch: Patch, distribution: Distribution, files: Mapping[str, bytes], no_effect: str | None) -> Status:
    def status(state: State, detail: str = "", new: Mapping[str, bytes] | None = None) -> Status:
        return Status(patch, state, detail, no_effect, new)

    if patch.spec.distribution != distribution.name:
        return status(State.CONFLICT, f"it is for {patch.spec.distribution}, not {distribution.name}")
    applied = next((one for one in distribution.applied if one.id == patch.id), None)
    present = [path for path in patch.spec.files if distribution.current(path) is not None]
    missing = [path for path in patch.spec.files if path not in present]
    drift = _drift(patch, distribution, present)
    if applied is not None:
        if drift or missing:
            return status(State.DRIFTED, drift or f"{missing[0]} is missing")
        if applied.sha256 != patch.sha256:
            return status(
                State.CONFLICT, f"another revision of it is applied ({applied.sha256[:12]}…); revert it first"
            )
        return status(State.APPLIED)
    sign = next((sign for sign in patch.spec.upstream if sign.holds(distribution.original)), None)
    if sign and not drift and not distribution.drift(sign.file):
        return status(State.OBSOLETE, patch.spec.removal)
    if missing and not distribution.record.lists(missing[0]):
        return status(State.CONFLICT, f"{distribution.name} {distribution.version} has no {missing[0]}")
    if drift or missing:
        return status(State.DRIFTED, drift or f"{missing[0]} is missing")
    if not patch.spec.covers(distribution.version):
        return status(State.CONFLICT, f"it is for versions {patch.spec.versions}")
    try:
        new = edited(patch, lambda path: files[path] if path in files else distribution.read(path))
    except AnchorError as error:
        return status(State.CONFLICT, str(error))
    if not new:
        return status(State.OBSOLETE, "the source holds every change already")
    return status(State.NO_EFFECT if no_effect else State.APPLIES, no_effect or "", new)


def edited(patch: Patch, read: Read) -> dict[str, bytes]:
    """Path -> new bytes of the files that the operations change.

    Raises:
        AnchorError: an operation does not fit; names file and operation.
    """
    before = {path: read(path) for path in patch.spec.files}
    after = dict(before)
    for operation in patch.spec.operation:
        try:
            after[operation.file] = operation.apply(after[operation.file])
        except AnchorError as error:
            raise AnchorError(f"{operation.file}: {error}") from error
    return {path: data for path, data in after.items() if data != before[path]}


def _drift(patch: Patch, distribution: Distribution, paths: Iterable[str]) -> str | None:
    """Why one of these files of the patch is not the one it was written for."""
    for path in paths:
        if reason := distribution.drift(path):
            return reason
        known = patch.spec.hashes(distribution.version, path)
        found = hashlib.sha256(distribution.original(path)).hexdigest()
        if known and found != known.before:
            return f"{path} is not the file of {distribution.name} {distribution.version} (sha256 {found[:12]}…)"
    return None

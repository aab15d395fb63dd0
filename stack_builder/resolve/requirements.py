"""``requirements.txt``: written for pip and uv, read back to be checked against ``artifacts.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from stack_builder.errors import UsageError
from stack_builder.resolve.model import DEFAULT_INDEX
from stack_builder.resolve.target import Target
from stack_builder.stack.lock import Artifact, Lock

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)$")
_HASH = re.compile(r"^--hash=(?P<algorithm>[a-z0-9]+):(?P<digest>[0-9a-f]+)$")


@dataclass(frozen=True, slots=True)
class Line:
    """One package of a requirements file.

    Attributes:
        name: normalised.
        version: as written.
        hashes: sha256 digests, in the file's order.
    """

    name: str
    version: str
    hashes: tuple[str, ...]


def write(lock: Lock, target: Target) -> str:
    """Give the text: sorted, one file and so one hash per package, no index address and no clock."""
    until = f"; uploads up to {lock.exclude_newer}" if lock.exclude_newer else ""
    parts = [
        f"# Lock of the stack {lock.stack}, written by stackb lock. Change stack.toml, not this file.\n"
        f"# CPython {lock.python}, {lock.platform}, glibc {target.glibc}. Resolved by {lock.resolver}{until}.\n"
    ]
    return "".join([*parts, *(_entry(artifact) for artifact in lock.artifacts)])


def _entry(artifact: Artifact) -> str:
    lines = [f"{artifact.name}=={artifact.version}"]
    if artifact.sha256 is not None:
        lines[0] += " \\"
        lines.append(f"    --hash=sha256:{artifact.sha256}")
    if artifact.index != DEFAULT_INDEX:
        lines.append(f"    # index {artifact.index}")
    if artifact.via:
        lines.append(f"    # via {', '.join(artifact.via)}")
    return "\n".join(lines) + "\n"


def parse(text: str, where: object) -> dict[str, Line]:
    """Read a requirements file of pinned packages, by normalised name.

    Raises:
        UsageError: a line that is neither ``name==version`` with sha256 hashes nor a comment, or a name twice.
    """
    lines: dict[str, Line] = {}
    for number, logical in _logical_lines(text):
        first, *options = logical.split()
        pin = _PIN.match(first)
        hashes = [_HASH.match(option) for option in options]
        if pin is None or not all(h is not None and h["algorithm"] == "sha256" for h in hashes):
            raise UsageError(
                f"line {number} is not 'name==version --hash=sha256:…': {logical[:80]}",
                where=where,
                fix="run stackb lock STACK to write it anew",
            )
        name = canonicalize_name(pin["name"])
        if name in lines:
            raise UsageError(f"line {number} pins {name} a second time", where=where, fix="run stackb lock STACK again")
        lines[name] = Line(name, pin["version"], tuple(h["digest"] for h in hashes if h is not None))
    return lines


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines and drop comments; each with the number of its first line."""
    logical: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw)
        start = start if pending else number
        pending += line.rstrip().removesuffix("\\") + " "
        if not line.rstrip().endswith("\\"):
            if pending.strip():
                logical.append((start, pending.strip()))
            pending = ""
    if pending.strip():
        logical.append((start, pending.strip()))
    return logical


def same_version(filename: str, version: str) -> bool:
    """Whether a wheel's file name carries a version, local part included."""
    return parse_wheel_filename(filename)[1] == Version(version)

"""Names of images in registries: ``HOST[:PORT]/NAME[:TAG][@sha256:…]``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stack_builder.errors import UsageError

# distribution-spec 1.1, "Pulling manifests"; the host must look like one, since there is no default registry here
_REFERENCE = re.compile(
    r"(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)"
    r"/(?P<name>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MAX = 1024  # characters


@dataclass(frozen=True, slots=True)
class Reference:
    """One image, or the place for one.

    Attributes:
        host: with its port.
        name: the repository.
        tag: ``latest`` where neither tag nor digest was given.
        digest: ``sha256:…``; it wins over the tag.
    """

    host: str
    name: str
    tag: str | None
    digest: str | None

    @property
    def manifest(self) -> str:
        """What the manifest is asked for by."""
        return self.digest or self.tag or "latest"

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine, where plain HTTP shows nothing to anybody else."""
        host = self.host.rpartition(":")[0] if re.search(r":[0-9]+$", self.host) else self.host
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def by_digest(self, digest: str) -> str:
        """The name that cannot move."""
        return f"{self.host}/{self.name}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Read a reference.

    Raises:
        UsageError: it is malformed, or names no registry.
    """
    match = _REFERENCE.fullmatch(text) if len(text) <= _MAX else None
    if match is None or not re.search(r"[.:]|^localhost$", match["host"]):
        raise UsageError(f"'{text[:200]}' names no image in a registry", fix="write HOST[:PORT]/NAME[:TAG]")
    tag = match["tag"] or (None if match["digest"] else "latest")
    return Reference(match["host"], match["name"], tag, match["digest"])

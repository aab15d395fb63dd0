"""Which torch release exports which symbol, and which kernel release fits which torch.

The two tables in ``checks/history/`` are generated from the wheels on PyPI (:mod:`~stack_builder.diagnose.abi.record`
regenerates them). The torch table holds only the symbols that some recorded release has and another lacks: about one
in twenty. A symbol that is not in it is exported by all of them or by none, which the installed torch tells apart.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from stack_builder import resources

TORCH_TABLE = "torch.json.gz"
KERNEL_TABLE = "kernels.json"


@dataclass(frozen=True, slots=True)
class TorchRelease:
    """One release as PyPI serves it for x86_64.

    Attributes:
        version: ``2.14.1``.
        cuda: CUDA release it is built with, such as ``13.0``.
        cxx11_abi: whether its strings are C++11's (``_GLIBCXX_USE_CXX11_ABI``).
    """

    version: str
    cuda: str
    cxx11_abi: bool

    @property
    def cuda_major(self) -> int:
        """``13``."""
        return int(self.cuda.partition(".")[0])


@dataclass(frozen=True, slots=True)
class KernelRelease:
    """One release of a kernel wheel as PyPI serves it for x86_64.

    Attributes:
        name: normalised distribution name.
        version: of the wheel.
        cuda_major: of the libraries its objects need.
        torch: recorded torch releases that export every symbol its objects take from torch.
    """

    name: str
    version: str
    cuda_major: int
    torch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TorchHistory:
    """The exports of torch's libraries over its releases.

    Attributes:
        releases: oldest first.
        changed: symbol to a bit mask over ``releases`` (bit 0 is the oldest), for symbols that not all export.
    """

    releases: tuple[TorchRelease, ...]
    changed: Mapping[str, int]

    def release(self, version: str) -> TorchRelease | None:
        """The recorded release of a version, local part ignored."""
        public = version.partition("+")[0]
        return next((r for r in self.releases if r.version == public), None)

    def exporters(self, symbol: str, installed: str, *, exported: bool) -> tuple[str, ...] | None:
        """Versions that export a symbol.

        Args:
            symbol: mangled name.
            installed: version of the torch that was looked into.
            exported: whether that torch exports it.

        Returns:
            None where nothing is known: the table does not tell all from none because ``installed`` is not recorded,
            or the table contradicts what was seen (a build of one's own).
        """
        mask = self.changed.get(symbol)
        recorded = self.release(installed)
        if mask is None:
            if recorded is None:
                return None
            return self._versions(-1) if exported else ()
        if recorded is not None and (recorded.version in self._versions(mask)) != exported:
            return None
        return self._versions(mask)

    def fitting(self, imports: Iterable[str]) -> tuple[str, ...]:
        """Versions that export every one of ``imports`` that is in the table."""
        mask = -1
        for symbol in imports:
            mask &= self.changed.get(symbol, -1)
        return self._versions(mask)

    def _versions(self, mask: int) -> tuple[str, ...]:
        return tuple(release.version for bit, release in enumerate(self.releases) if mask >> bit & 1)


@cache
def torch_history(path: Path | None = None) -> TorchHistory:
    """Read the table of torch symbols that ships with the tool, or another."""
    body = json.loads(gzip.decompress((path or resources.checks() / "history" / TORCH_TABLE).read_bytes()))
    releases = tuple(TorchRelease(**release) for release in body["releases"])
    changed = {symbol: int(mask, 16) for mask, symbols in body["changed"].items() for symbol in symbols}
    return TorchHistory(releases, changed)


@cache
def kernel_releases(path: Path | None = None) -> tuple[KernelRelease, ...]:
    """Read the table of kernel releases that ships with the tool, or another; newest first."""
    rows = json.loads((path or resources.checks() / "history" / KERNEL_TABLE).read_text(encoding="utf-8"))
    releases = [KernelRelease(**{**row, "torch": tuple(row["torch"])}) for row in rows]
    return tuple(sorted(releases, key=lambda release: Version(release.version), reverse=True))


def dump_torch(history: TorchHistory) -> bytes:
    """The bytes of the torch table: the same history gives the same bytes."""
    groups: dict[str, list[str]] = {}
    for symbol, mask in history.changed.items():
        groups.setdefault(f"{mask:x}", []).append(symbol)
    body = {
        "releases": [{"version": r.version, "cuda": r.cuda, "cxx11_abi": r.cxx11_abi} for r in history.releases],
        "changed": {mask: sorted(symbols) for mask, symbols in sorted(groups.items())},
    }
    return gzip.compress(json.dumps(body, separators=(",", ":")).encode(), 9, mtime=0)


def dump_kernels(releases: Iterable[KernelRelease]) -> str:
    """The text of the kernel table, one release a line."""
    ordered = sorted(releases, key=lambda r: (r.name, Version(r.version)))
    rows = [
        json.dumps({"name": r.name, "version": r.version, "cuda_major": r.cuda_major, "torch": list(r.torch)})
        for r in ordered
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def versions_text(versions: Iterable[str]) -> str:
    """Versions for a sentence: ``2.9.0, 2.9.1``."""
    return ", ".join(versions) or "none that is recorded"

"""pip-tools as the second resolver: pip's own resolver, fed by the loopback index.

It is run without ``--generate-hashes``: pip-compile ignores the hashes that an index gives and hashes whatever comes
back for the file's address, error pages included. Hashes come from the index page instead.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stack_builder.errors import IntegrityError, MachineError, StackbError, UsageError
from stack_builder.progress import Progress, Silent
from stack_builder.resolve import process, requirements
from stack_builder.resolve.indexes import Indexes
from stack_builder.resolve.loopback import LoopbackIndex
from stack_builder.resolve.model import Pin, Request
from stack_builder.resolve.target import Target

_TIMEOUT = 3600.0  # seconds; 210 packages take two to four minutes


@dataclass(frozen=True)
class PipTools:
    """The ``pip-compile`` that is installed beside stackb.

    It resolves for the Python that it runs under; a stack for another one is refused.

    Args:
        indexes: gives the real indexes by name.
        progress: where pip's own explanation of a conflict goes.
        offline: refuse to resolve; pip has no cache to resolve from.
    """

    indexes: Indexes
    progress: Progress = field(default_factory=Silent)
    offline: bool = False

    @cached_property
    def identity(self) -> str:
        """See :class:`~stack_builder.resolve.model.Resolver`."""
        from importlib.metadata import version

        return f"pip-tools {version('pip-tools')}"

    def resolve(self, request: Request) -> tuple[Pin, ...]:
        """See :class:`~stack_builder.resolve.model.Resolver`."""
        if self.offline:
            raise UsageError("pip-tools cannot resolve offline", fix="leave out --offline, or use --resolver uv")
        _refuse_other_machines(request.target)
        loopback = LoopbackIndex(request, self.indexes())
        with tempfile.TemporaryDirectory(prefix="stackb-pip-tools-") as folder, loopback.serve() as url:
            place = Path(folder)
            (place / "stack.in").write_text("".join(f"{root}\n" for root in request.spec.roots()), encoding="utf-8")
            kept = (f"{name}=={version}\n" for name, version in sorted(request.prefer.items()))
            (place / "lock.txt").write_text("".join(kept), encoding="utf-8")
            environment = process.inherited("PIP_", frozenset())
            environment |= {"PIP_CONFIG_FILE": "/dev/null", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            done = process.run("pip-compile", _command(url), cwd=place, environment=environment, timeout=_TIMEOUT)
            if done.returncode != 0:
                raise self._failure(done.stderr, loopback)
            lines = requirements.parse((place / "lock.txt").read_text(encoding="utf-8"), "pip-compile's answer")
        pins = (_pin(line.name, line.version, loopback, request) for line in lines.values())
        return tuple(sorted(pins, key=lambda pin: pin.name))

    def _failure(self, explanation: str, loopback: LoopbackIndex) -> StackbError:
        if loopback.failure is not None:
            return loopback.failure
        for line in re.findall(r"^ *((?:ERROR|WARNING): .*)", explanation, re.MULTILINE):  # not its traceback
            self.progress.note(f"pip-compile: {line}")
        conflicting = conflict(explanation)
        if conflicting is not None:
            return process.unsatisfiable(conflicting)
        last = ([line for line in explanation.splitlines() if line.strip()] or ["no reason given"])[-1]
        return MachineError(f"pip-compile failed: {last.strip()}", fix="see its own words above, or use --resolver uv")


def conflict(explanation: str) -> str | None:
    """Name the conflict in pip's explanation, or None where it failed for another reason."""
    conflicting = re.search(r"Cannot install (.*) because these package versions have conflicting", explanation)
    if conflicting:
        return f"{conflicting[1]} exclude each other"
    missing = re.search(r"Could not find a version that (?:satisfies|matches) (?:the requirement )?(.*)", explanation)
    return None if missing is None else f"no wheel for {missing[1]}"


def _command(url: str) -> list[str]:
    return [
        *(sys.executable, "-m", "piptools", "compile", "stack.in", "--output-file", "lock.txt"),
        *("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-options"),
        *("--allow-unsafe", "--strip-extras", "--no-config", "--resolver", "backtracking", "--cache-dir", "cache"),
        *("--index-url", url, "--pip-args", "--only-binary=:all:"),
    ]


def _pin(name: str, version: str, loopback: LoopbackIndex, request: Request) -> Pin:
    files = {
        filename: file
        for filename, file in loopback.files(name).items()
        if requirements.same_version(filename, version)
    }
    chosen = request.target.best(files)
    if chosen is None:
        raise IntegrityError(f"pip-compile chose {name} {version}, of which the index lists no wheel that fits")
    file = files[chosen]
    return Pin(
        name=name,
        version=version,
        filename=chosen,
        sha256=file.sha256,
        size=file.size,
        index=request.index_of(name),
        uploaded=f"{file.uploaded[:19]}Z" if file.uploaded else None,
        url=file.url,
    )


def _refuse_other_machines(target: Target) -> None:
    here = Target(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine(), platform.libc_ver()[1] or "0.0")
    for what, wanted, got in (("Python", target.python, here.python), ("machine", target.machine, here.machine)):
        if wanted != got:
            raise MachineError(
                f"pip-tools resolves for the {what} it runs on ({got}), the stack is for {wanted}",
                fix=f"run stackb on {what} {wanted}, or use --resolver uv",
            )
    if _numbers(here.glibc) < _numbers(target.glibc):
        raise MachineError(
            f"pip-tools resolves for the glibc it runs on ({here.glibc}), the stack's base has {target.glibc}",
            fix="run stackb on a newer system, or use --resolver uv",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

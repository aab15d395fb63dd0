"""Where a server runs: in a virtual environment of this machine, or in an image."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stack_builder.serve.launchers import DockerLauncher, Launcher, LocalLauncher
from stack_builder.serve.plan import Mount, Request, workspace

PYTHON_IN_IMAGE = "/opt/venv/bin/python3"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def target(self) -> str:
        """As other commands take it."""
        return f"venv:{self.folder}"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python3")

    @property
    def env(self) -> dict[str, str]:
        """PATH as in an active environment: JIT compilers run whatever ``ninja`` is on it."""
        return {"PATH": os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath)])}

    def mounts(self, request: Request) -> tuple[Mount, ...]:
        """The stack's own JIT cache."""
        return (_workspace(request),)

    def launcher(self) -> Launcher:
        """Starts a child process."""
        return LocalLauncher()


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the Docker engine has.

    Attributes:
        reference: its name.
        gpus: ``all``, ``none``, or device numbers such as ``0,1``.
        stack: what it is built from, as a user writes it in a command.
    """

    reference: str
    gpus: str = "all"
    stack: str = "STACK"

    @property
    def target(self) -> str:
        """As other commands take it."""
        return f"image:{self.reference}"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return PYTHON_IN_IMAGE

    @property
    def env(self) -> dict[str, str]:
        """Nothing: the image has its own."""
        return {}

    def mounts(self, request: Request) -> tuple[Mount, ...]:
        """The stack's JIT cache, writable, and each local model, read-only, at the paths they have on the host."""
        folders = [Path(name) for name in (request.model, request.draft) if name and Path(name).is_dir()]
        if request.adaptive is not None:
            folders.append(request.adaptive.parent)
        mounts = [Mount(folder, str(folder)) for folder in dict.fromkeys(folders)]
        return (*mounts, _workspace(request))

    def launcher(self) -> DockerLauncher:
        """Starts a container."""
        return DockerLauncher(self.reference, gpus=self.gpus, stack=self.stack)


Place = Environment | Image


def _workspace(request: Request) -> Mount:
    folder = workspace(request.stack)
    return Mount(folder, str(folder), read_only=False)

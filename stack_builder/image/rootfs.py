"""Running the base's own programs: its Python compiles bytecode, its ldconfig writes the linker's cache.

What such a program writes is a function of the base, which the lock pins, and not of the building machine. It runs in
a chroot, as nobody or in a user namespace, without the host's files, devices or environment; what it reads and writes
are open files that it inherits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from stack_builder.errors import MachineError

# The hash seed decides the order in which a compiler meets names, hence bytes.
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
_NOBODY = "65534:65534"
_TIMEOUT = 1800  # seconds; the largest wheel of a real stack takes 30


@dataclass(frozen=True, slots=True)
class Rootfs:
    """An unpacked base."""

    path: Path

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: IO[bytes] | bytes | None = None,
        stdout: IO[bytes] | int = subprocess.PIPE,
        files: Sequence[IO[bytes]] = (),
    ) -> bytes:
        """Run a program of the base.

        Args:
            argv: the program by its absolute path in the base, and its arguments.
            stdin: an open file, or the bytes to send, or nothing.
            stdout: an open file; without one, what the program prints is returned.
            files: open files that it inherits under their numbers.

        Raises:
            MachineError: it cannot be started, fails, or takes too long; with the last line it said.
        """
        data = stdin if isinstance(stdin, bytes) else None
        with subprocess.Popen(
            [*_enter(self.path), *argv],
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin or subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=[file.fileno() for file in files],
        ) as program:
            try:
                printed, complaint = program.communicate(data, timeout=_TIMEOUT)
            except BaseException as error:
                program.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise MachineError(f"did not finish in {_TIMEOUT} s", where=_name(argv)) from error
                raise
        if program.returncode != 0:
            last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise MachineError(
                f"failed ({program.returncode}): {last[0][:300]}",
                where=_name(argv),
                fix="build as root, or where user namespaces are allowed, or give --no-bytecode",
            )
        return printed or b""


def readable_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, readable by nobody too, whatever the umask."""
    if not path.is_dir():
        readable_folder(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


@cache
def can_enter() -> str | None:
    """Say why programs of a base cannot be run on this machine, or None if they can."""
    if os.geteuid() == 0:
        return None if shutil.which("chroot") else "there is no chroot program"
    if not shutil.which("unshare"):
        return "there is no unshare program"
    tried = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "not root, and user namespaces are not allowed"


def _name(argv: Sequence[str]) -> str:
    return f"{argv[0]} of the base image"


def _enter(root: Path) -> list[str]:
    if os.geteuid() == 0:
        return ["chroot", f"--userspec={_NOBODY}", str(root)]
    return ["unshare", "--user", "--map-root-user", f"--root={root}"]

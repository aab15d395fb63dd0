"""Detached signatures by a command of the user's: keys, tokens and identities stay theirs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stack_builder.errors import MachineError, UsageError
from stack_builder.files import atomic_write

SIGNATURE = "stackb-digest.sig"

MAX_SIGNATURE = 1 << 20  # bytes; a bundle with certificate and log entry has some 10 kB
_PATIENCE = 600.0  # seconds; someone may have to touch a key or log in
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def payload(digest: str) -> bytes:
    """What is signed: the image's manifest digest as one line, such as ``sha256:…``. The digest covers all the rest.

    Raises:
        UsageError: not a digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"'{digest[:100]}' is not a digest")
    return f"{digest}\n".encode()


def words(command: str) -> list[str]:
    """Split a signing command as a shell does, and see that there is one, before an image is built for it.

    Raises:
        UsageError: the command is empty or cannot be split.
        MachineError: there is no such program.
    """
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"cannot be split into words: {error}", where="--sign-with") from error
    if not found:
        raise UsageError("is empty", where="--sign-with", fix="see docs/signing.md")
    if shutil.which(found[0]) is None:
        raise MachineError("no such command", where=found[0], fix="install it or give another --sign-with")
    return found


def sign(digest: str, command: Sequence[str], target: Path) -> None:
    """Have ``command`` sign an image: it reads :func:`payload` on stdin and writes the signature to stdout.

    Args:
        digest: of the image's manifest, ``sha256:…``.
        command: its words; no shell runs it.
        target: where the signature goes, in one step and only if the command succeeded.

    Raises:
        MachineError: it cannot be started, fails, writes nothing, or takes longer than ten minutes.
    """
    fix = "the image itself is there, unsigned; see the command's own words above, and docs/signing.md"
    try:
        done = subprocess.run(
            command, input=payload(digest), stdout=subprocess.PIPE, check=False, timeout=_PATIENCE
        )  # stderr is the terminal's: the command may ask for a password
    except OSError as error:
        raise MachineError(f"cannot be started ({error.strerror})", where=command[0], fix=fix) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"did not end within {_PATIENCE:.0f} s", where=command[0], fix=fix) from error
    if done.returncode != 0:
        raise MachineError(f"the signing command failed with exit code {done.returncode}", where=command[0], fix=fix)
    if not 0 < len(done.stdout) <= MAX_SIGNATURE:
        raise MachineError(f"wrote {len(done.stdout)} bytes, which is no signature", where=command[0], fix=fix)
    atomic_write(target, done.stdout)

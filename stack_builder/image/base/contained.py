"""A program that mounts things, run so that neither its mounts nor its children outlive this process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

# The kernel ends each link of this chain with the one before it (PR_SET_PDEATHSIG), however that ended. The last one is
# process 1 of a namespace, with which all others in it end, and with them go the mounts, which no other process saw.
# mmdebstrap itself unmounts only if it is left the time.
_CONTAINED = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")
_LEAVE = 10.0  # seconds for the kernel to end what is contained


@cache
def _can_contain() -> bool:
    """Root without CAP_SYS_ADMIN can neither unshare nor mount; who is not root has mounts in namespaces alone."""
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([*_CONTAINED, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_contained(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with umask 022 and without standard input.

    Args:
        argv: its name and arguments.
        environment: all of its environment.

    Returns:
        how it ended, and what it printed.
    """
    prefix = _CONTAINED if _can_contain() else ()
    with subprocess.Popen(
        [*prefix, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        umask=0o022,
    ) as program:
        try:
            out, err = program.communicate()
        except BaseException:
            program.kill()
            with suppress(subprocess.TimeoutExpired):  # until nobody holds the pipes any more
                program.communicate(timeout=_LEAVE)
            raise
    return subprocess.CompletedProcess(argv, program.returncode, out, err)

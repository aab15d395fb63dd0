"""Running a resolver: bounded in time, with an environment that cannot change its answer unseen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from stack_builder.errors import MachineError, UsageError

_MAX_LINE = 400  # characters of a conflict in one line


def run(
    tool: str, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a resolver and give what it said.

    Args:
        tool: what messages call it.
        arguments: the program first.
        cwd: where it runs.
        environment: all of its environment.
        timeout: seconds.

    Raises:
        MachineError: it cannot be started, or does not end within ``timeout`` seconds.
    """
    try:
        return subprocess.run(
            arguments,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise MachineError(f"{tool} cannot be started", where=error.filename, fix="install stackb again") from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"{tool} did not finish within {timeout:.0f} s", fix="check that the index answers, then try again"
        ) from error


def inherited(prefix: str, keep: frozenset[str]) -> dict[str, str]:
    """This process's environment without the tool's own variables, save those that say where the index is.

    A variable such as ``UV_PRERELEASE`` or ``PIP_CONSTRAINT`` would make two machines lock different sets.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix) or name in keep}


def unsatisfiable(conflict: str) -> UsageError:
    """The error for a stack file that no set of versions satisfies."""
    line = " ".join(conflict.split())
    if len(line) > _MAX_LINE:
        line = line[: _MAX_LINE - 1] + "…"
    return UsageError(
        f"no set of wheels satisfies it: {line}",
        where="stack.toml",
        fix="change [requires], or record an [[override]] with its reason",
    )

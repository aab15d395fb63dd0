"""The errors a user can meet, and the exit codes they end with.

One line each: what happened, where, what to do next. Nothing else in the package calls ``sys.exit``.
"""

from __future__ import annotations

import errno
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails


class ExitCode(IntEnum):
    """How a command ends. The table in ``--help`` and in the README is made from this one."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    COULD_NOT_CHECK = 3
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for the table of exit codes."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.CLEAN: "clean: everything asked for was done, nothing was found",
    ExitCode.FINDINGS: "findings: the thing that was checked is wrong (a hash, a symbol, a lock, an image)",
    ExitCode.USAGE: "usage: unknown command, option or stack, or a malformed stack.toml or lock",
    ExitCode.COULD_NOT_CHECK: "could not check: missing tool, unreachable index, no permission, disk full",
    ExitCode.INTERRUPTED: "interrupted",
}


class StackbError(Exception):
    """A failure with a cause that the user can act on.

    Args:
        what: what happened, without a full stop.
        where: the file, wheel, URL or option concerned.
        fix: what to do next, as an imperative sentence without a full stop.
    """

    exit_code: ExitCode = ExitCode.COULD_NOT_CHECK

    def __init__(self, what: str, *, where: object = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.fix = fix

    def __str__(self) -> str:
        line = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.fix is None:
            return line
        # what is to be typed (venv:DIR, --output) keeps its case
        start = self.fix.split(maxsplit=1)[0]
        fix = f"{self.fix[0].upper()}{self.fix[1:]}" if start.isalpha() else self.fix
        return f"{line}. {fix}{'' if fix.endswith(('.', '?')) else '.'}"


class UsageError(StackbError):
    """The call, the stack file or the lock is malformed; running it again unchanged cannot help."""

    exit_code = ExitCode.USAGE


class IntegrityError(StackbError):
    """Bytes are not what they were promised to be: a hash, a size, a RECORD, a digest."""

    exit_code = ExitCode.FINDINGS


class MachineError(StackbError):
    """The machine or the network stands in the way: missing tool, no daemon, no permission, no space."""

    exit_code = ExitCode.COULD_NOT_CHECK


def engine_says(error: object) -> str:
    """Give a Docker engine's own words in one line, of what it sent or of docker-py's error."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())[:500]


def no_engine(error: BaseException, *, fix: str) -> MachineError:
    """Say why no Docker engine answers: docker-py wraps the one cause that the user can mend by a permission.

    Args:
        error: what connecting raised.
        fix: what to do where it is not a missing permission.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PermissionError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return MachineError(f"no Docker engine answers ({engine_says(error)})", fix=fix)
    return MachineError(
        "this user has no permission on the Docker engine's socket",
        fix="join the group docker (sudo usermod -aG docker USER, then log in again), or run it with sudo",
    )


def refused(error: ValidationError, *, model: type[BaseModel] | None = None, count: bool = False) -> str:
    """Say in one line what pydantic refuses: where in the document, and why; a key that is unknown before all else.

    A misspelt key is missing under its right name as well, which hides what is wrong.

    Args:
        error: what reading the document raised.
        model: what the document was read as; names the known key that is nearest to an unknown one.
        count: add how many more things are wrong, for documents that people write.
    """
    wrong = error.errors()
    first = next((each for each in wrong if each["type"] == "extra_forbidden"), wrong[0])
    key = ".".join(map(str, first["loc"])) or "file"
    more = f" (and {error.error_count() - 1} more)" if count and error.error_count() > 1 else ""
    said = first["msg"].removeprefix("Value error, ").replace("a valid tuple", "an array")
    if first["type"] == "extra_forbidden":
        said = "unknown key"
        if near := get_close_matches(str(first["loc"][-1]), _keys_beside(first["loc"], wrong, model), 1):
            said += f", did you mean '{near[0]}'?"
    return f"{key}: {said}{more}"


def _keys_beside(place: tuple[int | str, ...], wrong: list[ErrorDetails], model: type[BaseModel] | None) -> list[str]:
    """Keys that could stand where an unknown one does: those missing there, and those of the model."""
    from pydantic import BaseModel  # loaded by whoever reads a document

    missing = [str(each["loc"][-1]) for each in wrong if each["type"] == "missing" and each["loc"][:-1] == place[:-1]]
    for name in place[:-1]:
        field = None if model is None else model.model_fields.get(str(name))
        inner = None if field is None else field.annotation
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return missing + ([] if model is None else list(model.model_fields))


def first_line(error: object) -> str:
    """What an error says, on one line; some, such as a MemoryError of Python's parser, say nothing but their name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_OS_FIXES = {
    errno.ENOSPC: "free some space or point STACKB_CACHE_DIR at a larger disk",
    errno.EDQUOT: "free some space or point STACKB_CACHE_DIR at a larger disk",
    errno.EACCES: "check the owner and mode of that path",
    errno.EPERM: "check the owner and mode of that path",
    errno.EROFS: "point STACKB_CACHE_DIR or --output at a writable place",
    errno.EIO: "check that disk; the kernel's log says more",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def _adrift() -> bool:
    """Whether the working folder was removed: the kernel names no path then."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def from_os_error(error: OSError) -> StackbError:
    """Turn an ``OSError`` that reached the command line into one line with what to do next."""
    if error.errno == errno.ENOENT and not error.filename and _adrift():
        return MachineError("the folder that this was started in is gone", fix="change into one that is there")
    what = error.strerror or str(error)
    # without a file name it is a stream of ours, such as a full stdout: no advice on caches would help
    advised = error.filename or error.errno == errno.EIO
    return MachineError(what, where=error.filename, fix=_OS_FIXES.get(error.errno or 0) if advised else None)

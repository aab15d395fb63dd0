"""Arguments that several commands take, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stack_builder.errors import UsageError

_MAX_KEY_FILE = 4096  # bytes that are looked at

Stack = Annotated[str | None, typer.Argument(help="Name or folder of a stack; the default stack if left out.")]
ServerArguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- [SGLANG ARGS]...", help="Win over the stack's.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Use no network; fail if something is missing.")]
WheelFolder = Annotated[
    Path | None, typer.Option("--from", metavar="DIR", help="Look for wheels in this folder and below first.")
]
Workers = Annotated[int | None, typer.Option(min=1, max=256, help="Worker processes; one per core if left out.")]


def split_server_arguments(stack: str | None, arguments: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """Tell a stack from SGLang's arguments: where no stack is named, the first of them stands in its place."""
    if stack is not None and stack.startswith("-"):
        return None, [stack, *(arguments or ())]
    return stack, [*(arguments or ())]


def read_key(path: Path | None) -> str | None:
    """The servers' API key: the first line of a file (a pipe is one as well), else ``STACKB_API_KEY``; None for none.

    Raises:
        UsageError: there is no such file, or no key in it.
    """
    if path is None:
        key = os.environ.get("STACKB_API_KEY", "")
        if not key:
            return None
    else:
        try:
            with path.open("rb") as file:
                key = file.readline(_MAX_KEY_FILE).decode(errors="replace").strip()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise UsageError("no such file", where=path, fix="give a file whose first line is the key") from error
    if not key or not key.isascii() or not key.isprintable():  # it travels in an HTTP header
        fix = "write the key on its first line, in ASCII" if path else "give a key in ASCII"
        raise UsageError("holds no key", where=path or "STACKB_API_KEY", fix=fix)
    return key

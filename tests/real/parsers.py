"""Options as read from the source against what the real argparse holds (``real_parser.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stack_builder.sglang.options import Option, OptionTable


def differences(table: OptionTable, real: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name every difference in spellings, destination, number of values, default, choices and type."""
    mine = {option.names: option for option in table.options}
    theirs = {tuple(each["names"]): each for each in real}
    only = [f"only read: {names}" for names in mine.keys() - theirs.keys()]
    only += [f"only in the parser: {names}" for names in theirs.keys() - mine.keys()]
    both = (names for names in theirs if names in mine)
    return sorted(only) + [text for names in both for text in _of_one(mine[names], theirs[names])]


def _of_one(option: Option, real: Mapping[str, Any]) -> Iterator[str]:
    if option.unknown:
        yield f"{option.name}: {', '.join(option.unknown)} not readable"
    choices = None if option.choices is None else [str(choice) for choice in option.choices]
    pairs = {
        "dest": (option.dest, real["dest"]),
        "nargs": (option.nargs, real["nargs"]),
        "default": (option.default, real["default"]),
        "required": (option.required, real["required"]),
        "choices": (choices, real["choices"]),
    }
    if option.takes_value:
        pairs["type"] = ((option.type or "str").rsplit(".", 1)[-1], real["type"] or "str")
    for name, (read, held) in pairs.items():
        if read != held:
            yield f"{option.name}: {name} read as {read!r}, the parser holds {held!r}"

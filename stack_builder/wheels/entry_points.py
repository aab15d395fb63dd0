"""``entry_points.txt``: the programs that an installer writes for a wheel (entry points specification)."""

from __future__ import annotations

import re
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from typing import NoReturn

from stack_builder.errors import IntegrityError, first_line
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.layout import FIX, Layout

MAX_ENTRY_POINTS = 1 << 20  # bytes

_GROUPS = ("console_scripts", "gui_scripts")
_REFERENCE = re.compile(r"(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(\[.*\])?$")
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class Script:
    """One program: what it is called, and what it calls."""

    name: str
    module: str
    attribute: str


def read_scripts(archive: WheelArchive, layout: Layout) -> list[Script]:
    """Read the console and GUI scripts of a wheel, in the file's order; none where it has no such file.

    Raises:
        IntegrityError: malformed, or a name or reference that is no entry point.
    """
    where = f"{archive.filename}: {layout.dist_info}/entry_points.txt"
    entry = archive.find(f"{layout.dist_info}/entry_points.txt")
    if entry is None:
        return []
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
    try:
        parser.read_string(archive.read(entry, MAX_ENTRY_POINTS).decode())
    except UnicodeDecodeError as error:
        _refuse(f"is not UTF-8 ({error})", where)
    except ConfigError as error:
        _refuse(f"is malformed ({first_line(error)})", where)
    found = []
    for group in _GROUPS:
        for name, reference in parser.items(group) if parser.has_section(group) else ():
            match = _REFERENCE.match(reference.strip())
            if match is None or not _NAME.fullmatch(name):
                _refuse(f"'{name} = {reference}' is no entry point", where)
            found.append(Script(name, match["module"], match["attribute"]))
    return found


def _refuse(what: str, where: str) -> NoReturn:
    raise IntegrityError(what, where=where, fix=FIX)

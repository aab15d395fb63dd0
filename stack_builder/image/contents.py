"""What a wheel becomes once installed: paths, modes, hashes. Nothing is unpacked or run.

The rules are those of the wheel specification (PEP 427 and its successor in the packaging guide): ``.data`` folders go
to their scheme, ``#!python`` lines and ``console_scripts`` get the environment's interpreter, RECORD must list every
file with its hash. What the wheel itself says is read by :mod:`stack_builder.wheels`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from stack_builder.errors import IntegrityError
from stack_builder.image.tarball import EXECUTABLE, FILE
from stack_builder.wheels.archive import Entry, WheelArchive
from stack_builder.wheels.entry_points import read_scripts
from stack_builder.wheels.layout import FIX, read_layout, venv_path
from stack_builder.wheels.record import hash_text, read_record, unlisted

INSTALLER = b"stackb\n"

_SCRIPT_LIMIT = 512 << 20
_INTERPRETER = re.compile(rb"#!python[^\n]*\n")

# What pip, uv and distlib write, in our own words: the part of the file that users see in tracebacks.
_LAUNCHER = """#!{interpreter}
import re
import sys

from {module} import {root}

if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit({attribute}())
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are inside the environment, relative to the root of the image, without a leading slash."""

    prefix: str
    python: str

    @property
    def site(self) -> str:
        """``…/lib/python3.11/site-packages``."""
        return f"{self.prefix}/lib/python{self.python}/site-packages"

    @property
    def bin(self) -> str:
        """Where console scripts go."""
        return f"{self.prefix}/bin"

    @property
    def interpreter(self) -> str:
        """Absolute path for the first line of scripts."""
        return f"/{self.bin}/python3"

    def reserved(self, path: str) -> bool:
        """Whether ``path`` belongs to the environment itself, so that no wheel may bring it."""
        return re.fullmatch(r"pyvenv\.cfg|bin/python(3(\.[0-9]+)?)?", path.removeprefix(f"{self.prefix}/")) is not None


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of an installed wheel.

    Attributes:
        path: relative to the root of the image, without a leading slash.
        mode: 0o644 or 0o755.
        size: in bytes.
        hash: ``sha256=`` and so on, as RECORD writes it.
        entry: name of the wheel's entry that holds the bytes, or None where ``text`` does.
        text: content of a generated file.
    """

    path: str
    mode: int
    size: int
    hash: str
    entry: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """An installed wheel, RECORD and bytecode left out: these depend on what else is decided.

    Attributes:
        name: normalised distribution name.
        version: as in the name of the ``.dist-info`` folder.
        record: path of RECORD in the image.
        files: sorted by path.
    """

    name: str
    version: str
    record: str
    files: tuple[InstalledFile, ...]

    def to_json(self) -> str:
        """One line per file would be larger and no easier to read: compact JSON, for the cache alone."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Contents:
        """Inverse of :meth:`to_json`."""
        body = json.loads(text)
        return cls(**{**body, "files": tuple(InstalledFile(**file) for file in body["files"])})


def read(wheel: Path, filename: str, place: Place) -> Contents:
    """Read a wheel's directory, RECORD and entry points.

    Args:
        wheel: the file, already known to be the one that was promised.
        filename: its name as a wheel.
        place: where it will be installed.

    Raises:
        IntegrityError: a malformed wheel, a RECORD that is not complete, an unsafe or reserved path.
    """
    with wheel.open("rb") as file:
        return _Reader(WheelArchive(file, filename), place).contents()


class _Reader:
    """The steps of :func:`read`, which all need the archive and the place."""

    def __init__(self, archive: WheelArchive, place: Place) -> None:
        self._archive, self._place = archive, place
        self._layout = read_layout(archive)
        self._promises = read_record(archive, self._layout)

    def contents(self) -> Contents:
        info = f"{self._place.site}/{self._layout.dist_info}"
        installer = f"{info}/INSTALLER"
        left_out = {*unlisted(self._layout), f"{self._layout.dist_info}/INSTALLER"}
        files = {}
        for entry in self._archive.files():
            if entry.name in left_out or _is_bytecode(entry.name):
                continue
            installed = self._installed(entry)
            if installed.path in files:
                self._refuse(f"two entries install to /{installed.path}", entry.name)
            files[installed.path] = installed
        for script in self._console_scripts():
            files.setdefault(script.path, script)  # a script that the wheel itself ships wins, as in pip
        files[installer] = InstalledFile(installer, FILE, len(INSTALLER), hash_text(INSTALLER), text=INSTALLER.decode())
        for path in files:
            if self._place.reserved(path):
                self._refuse(f"would replace /{path}, which belongs to the environment")
        return Contents(
            name=self._layout.distribution,
            version=self._layout.version,
            record=f"{info}/RECORD",
            files=tuple(files[path] for path in sorted(files)),
        )

    def _installed(self, entry: Entry) -> InstalledFile:
        scheme, rest = self._layout.place(entry.name)
        below = venv_path(scheme, rest, self._layout.distribution, self._place.python)
        path = f"{self._place.prefix}/{below}"
        if scheme == "scripts":
            return self._script(entry, path)
        mode = EXECUTABLE if entry.mode & 0o111 else FILE
        return InstalledFile(path, mode, entry.size, self._promises[entry.name].text, entry.name)

    def _script(self, entry: Entry, path: str) -> InstalledFile:
        if self._archive.prefix(entry, min(entry.size, 9)).startswith(b"#!python"):
            data = self._archive.read(entry, _SCRIPT_LIMIT)
            if match := _INTERPRETER.match(data):  # its options are dropped, as pip does
                line = b"#!" + self._place.interpreter.encode() + b"\n"
                return self._generated(path, EXECUTABLE, line + data[match.end() :])
        return InstalledFile(path, EXECUTABLE, entry.size, self._promises[entry.name].text, entry.name)

    def _console_scripts(self) -> Iterator[InstalledFile]:
        for script in read_scripts(self._archive, self._layout):
            text = _LAUNCHER.format(
                interpreter=self._place.interpreter,
                module=script.module,
                root=script.attribute.partition(".")[0],
                attribute=script.attribute,
            )
            yield self._generated(f"{self._place.bin}/{script.name}", EXECUTABLE, text.encode())

    def _generated(self, path: str, mode: int, data: bytes) -> InstalledFile:
        # Latin-1 maps every byte to one character and back: a script's encoding is its own affair.
        return InstalledFile(path, mode, len(data), hash_text(data), text=data.decode("latin-1"))

    def _refuse(self, what: str, name: str | None = None) -> NoReturn:
        where = self._archive.filename if name is None else f"{self._archive.filename}: {name}"
        raise IntegrityError(what, where=where, fix=FIX)


def _is_bytecode(name: str) -> bool:
    """Bytecode that a wheel brings names the builder's paths and clock; the image's own Python makes it anew."""
    return "__pycache__" in name.split("/")

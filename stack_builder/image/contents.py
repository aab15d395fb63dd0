"""What a wheel becomes once installed: paths, modes, hashes. Nothing is unpacked or run.

The rules are those of the wheel specification (PEP 427 and its successor in the packaging guide): ``.data`` folders go
to their scheme, ``#!python`` lines and ``console_scripts`` get the environment's interpreter, RECORD must list every
file with its hash. Unlike most installers this one refuses a wheel whose RECORD is incomplete: all of some 400 wheels
of two real stacks are complete, so an incomplete one deserves a look.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError
from stack_builder.image.tarball import EXECUTABLE, FILE
from stack_builder.wheels.archive import Entry, WheelArchive

INSTALLER = b"stackb\n"

_RECORD_LIMIT = 64 << 20
_TEXT_LIMIT = 4 << 20
_SCRIPT_LIMIT = 512 << 20
_HASHES = {"sha256", "sha384", "sha512"}  # "must be sha256 or better" (packaging guide, "The RECORD file")
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_INTERPRETER = re.compile(rb"#!python[^\n]*\n")
_REFERENCE = re.compile(r"(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(\[.*\])?$")
_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]*")

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


def hash_text(data: bytes, algorithm: str = "sha256") -> str:
    """A hash in the form of RECORD: algorithm, ``=``, base64 of the digest for URLs without padding."""
    return f"{algorithm}={urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b'=').decode()}"


def hash_digest(text: str) -> tuple[str, str]:
    """Split a RECORD hash into algorithm and hexadecimal digest."""
    algorithm, _, value = text.partition("=")
    return algorithm, urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


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
        self._info = self._find_info()
        self._data = self._info.removesuffix(".dist-info") + ".data"

    def contents(self) -> Contents:
        record = self._record()
        files = {}
        for entry in self._archive.files():
            if entry.name in self._unlisted() or _is_bytecode(entry.name):
                continue
            installed = self._installed(entry, record)
            if installed.path in files:
                self._refuse(f"two entries install to /{installed.path}", entry.name)
            files[installed.path] = installed
        for script in self._console_scripts():
            files.setdefault(script.path, script)  # a script that the wheel itself ships wins, as in pip
        installer = f"{self._place.site}/{self._info}/INSTALLER"
        files[installer] = InstalledFile(installer, FILE, len(INSTALLER), hash_text(INSTALLER), text=INSTALLER.decode())
        for path in files:
            if self._place.reserved(path):
                self._refuse(f"would replace /{path}, which belongs to the environment")
        name, _, version = self._info.removesuffix(".dist-info").partition("-")
        return Contents(
            name=canonicalize_name(name),
            version=version,
            record=f"{self._place.site}/{self._info}/RECORD",
            files=tuple(files[path] for path in sorted(files)),
        )

    def _find_info(self) -> str:
        wanted = "-".join(self._archive.filename.split("-")[:2])
        folders = {e.name.split("/")[0] for e in self._archive.files() if e.name.count("/") == 1}
        found = [folder for folder in folders if folder.endswith(".dist-info")]
        if len(found) != 1:
            self._refuse(f"has {len(found)} .dist-info folders instead of one")
        name, _, _ = found[0].removesuffix(".dist-info").partition("-")
        if canonicalize_name(name) != canonicalize_name(wanted.partition("-")[0]):
            self._refuse(f"holds another distribution, {found[0]}")
        return found[0]

    def _unlisted(self) -> set[str]:
        return {f"{self._info}/{name}" for name in ("RECORD", *_SIGNATURES, "INSTALLER")}

    def _record(self) -> dict[str, str]:
        """RECORD as path to hash, after checking that it lists the wheel's files, all of them and no others."""
        where = f"{self._info}/RECORD"
        rows = {}
        try:
            for row in csv.reader(self._text(where, _RECORD_LIMIT).splitlines()):
                path, value, _ = row
                rows[path.replace("\\", "/")] = value
        except (ValueError, csv.Error) as error:
            self._refuse(f"malformed row ({error})", where)
        names = {e.name for e in self._archive.files()} - self._unlisted()
        rows = {path: value for path, value in rows.items() if path not in self._unlisted()}
        if missing := sorted(names - rows.keys()):
            self._refuse(f"does not list {missing[0]} ({len(missing)} in all)", where)
        if gone := sorted(rows.keys() - names):
            self._refuse(f"lists {gone[0]}, which is not in the wheel ({len(gone)} in all)", where)
        for path, value in rows.items():
            if value.partition("=")[0] not in _HASHES:
                self._refuse(f"gives no hash, or a weak one, for {path}", where)
        return rows

    def _installed(self, entry: Entry, record: dict[str, str]) -> InstalledFile:
        mode = EXECUTABLE if entry.mode & 0o111 else FILE
        scheme, _, rest = entry.name.removeprefix(f"{self._data}/").partition("/")
        site = self._place.site
        if not entry.name.startswith(f"{self._data}/"):
            return InstalledFile(f"{site}/{entry.name}", mode, entry.size, record[entry.name], entry.name)
        if scheme == "scripts":
            return self._script(entry, rest, record)
        distribution = self._info.partition("-")[0]
        roots = {
            "purelib": site,
            "platlib": site,
            "data": self._place.prefix,
            "headers": f"{self._place.prefix}/include/site/python{self._place.python}/{distribution}",
        }
        if scheme not in roots or not rest:
            self._refuse("is in no scheme that the wheel specification knows", entry.name)
        return InstalledFile(f"{roots[scheme]}/{rest}", mode, entry.size, record[entry.name], entry.name)

    def _script(self, entry: Entry, name: str, record: dict[str, str]) -> InstalledFile:
        path = f"{self._place.bin}/{name}"
        if self._archive.prefix(entry, min(entry.size, 9)).startswith(b"#!python"):
            data = self._archive.read(entry, _SCRIPT_LIMIT)
            if match := _INTERPRETER.match(data):  # its options are dropped, as pip does
                line = b"#!" + self._place.interpreter.encode() + b"\n"
                return self._generated(path, EXECUTABLE, line + data[match.end() :])
        return InstalledFile(path, EXECUTABLE, entry.size, record[entry.name], entry.name)

    def _console_scripts(self) -> Iterator[InstalledFile]:
        where = f"{self._info}/entry_points.txt"
        if self._archive.find(where) is None:
            return
        parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
        try:
            parser.read_string(self._text(where, _TEXT_LIMIT))
        except ConfigError as error:
            self._refuse(f"is malformed ({str(error).splitlines()[0]})", where)
        for section in ("console_scripts", "gui_scripts"):
            for name, reference in parser.items(section) if parser.has_section(section) else ():
                match = _REFERENCE.match(reference.strip())
                if match is None or not _SCRIPT_NAME.fullmatch(name):
                    self._refuse(f"'{name} = {reference}' is no entry point", where)
                text = _LAUNCHER.format(
                    interpreter=self._place.interpreter,
                    module=match["module"],
                    root=match["attribute"].partition(".")[0],
                    attribute=match["attribute"],
                )
                yield self._generated(f"{self._place.bin}/{name}", EXECUTABLE, text.encode())

    def _generated(self, path: str, mode: int, data: bytes) -> InstalledFile:
        # Latin-1 maps every byte to one character and back: a script's encoding is its own affair.
        return InstalledFile(path, mode, len(data), hash_text(data), text=data.decode("latin-1"))

    def _text(self, name: str, limit: int) -> str:
        entry = self._archive.find(name)
        if entry is None:
            self._refuse("is missing", name)
        try:
            return self._archive.read(entry, limit).decode()
        except UnicodeDecodeError as error:
            self._refuse(f"is not UTF-8 ({error})", name)

    def _refuse(self, what: str, name: str | None = None) -> NoReturn:
        where = self._archive.filename if name is None else f"{self._archive.filename}: {name}"
        raise IntegrityError(what, where=where, fix="report it to the wheel's authors, or pin another version")


def _is_bytecode(name: str) -> bool:
    """Bytecode that a wheel brings names the builder's paths and clock; the image's own Python makes it anew."""
    return "__pycache__" in name.split("/")

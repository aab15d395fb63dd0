"""Package indexes: which one is the default, and what an index lists for a project."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import tomllib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import canonicalize_name

from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.stack.spec import StackSpec
from stack_builder.wheels.archive import SeekableFile
from stack_builder.wheels.facts import MAX_METADATA
from stack_builder.wheels.http import Http, NotFoundError, Page, redact
from stack_builder.wheels.remote import RemoteFile
from stack_builder.wheels.simple import ACCEPT, MAX_PAGE, IndexFile, parse_page

__all__ = ["DEFAULT", "Index", "IndexFile", "configured_default", "indexes_of"]

DEFAULT = "default"
_MAX_CONFIG = 1 << 20  # bytes
_KEPT_FILES = 50_000  # of pages read; the 207 projects of a real stack list 173,000, which would take 150 MB


class Index:
    """One index of the Simple API; the pages read last are kept.

    Args:
        name: as in ``[[index]]``, or ``default``.
        url: of its root, such as ``https://host/simple``; may hold credentials. ``file://`` for a mirror on disk.
        http: the connections to use.
        packages: the only projects it may serve; None for all (the default index).

    Raises:
        UsageError: the URL is none that can be read.
    """

    def __init__(self, name: str, url: str, http: Http, packages: frozenset[str] | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https", "file"):
            fix = "correct UV_DEFAULT_INDEX, PIP_INDEX_URL or stack.toml"
            raise UsageError(f"address of index '{name}' is neither http(s) nor file", where=redact(url), fix=fix)
        self.name = name
        self.url = http.adopt(url).rstrip("/") + "/"
        self.packages = packages
        self._http = http
        self._pages: OrderedDict[str, tuple[IndexFile, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """List all files of a project, source archives included, in the page's order.

        Returns:
            empty for a project that the index does not know.

        Raises:
            UsageError: the index does not serve that project.
            IntegrityError: a malformed page.
            MachineError: the index cannot be read.
        """
        name = canonicalize_name(project)
        if self.packages is not None and name not in self.packages:
            raise UsageError(f"index '{self.name}' does not list package '{name}'")
        with self._lock:
            known = self._pages.get(name)
        if known is None:
            known = self._read(name)
            with self._lock:
                self._pages[name] = known
                while len(self._pages) > 1 and sum(map(len, self._pages.values())) > _KEPT_FILES:
                    self._pages.popitem(last=False)
        return known

    def find(self, project: str, filename: str) -> tuple[IndexFile, ...]:
        """List the files of one name: more than one where the index offers several uploads of it."""
        return tuple(file for file in self.files(project) if file.filename == filename)

    def metadata(self, file: IndexFile) -> bytes | None:
        """Give the METADATA that the index offers beside a wheel (PEP 658), checked against its hash; None if none.

        Raises:
            IntegrityError: other bytes than the index promised.
        """
        if file.metadata_sha256 is None:
            return None
        url = file.url + ".metadata"
        try:
            if urlsplit(url).scheme == "file":
                data = _local_path(url).read_bytes()
            else:
                data = self._http.page(url, accept="*/*", limit=MAX_METADATA).body
        except (NotFoundError, FileNotFoundError):
            return None
        got = hashlib.sha256(data).hexdigest()
        if file.metadata_sha256 and got != file.metadata_sha256:
            raise IntegrityError(f"METADATA has sha256 {got}, the index says {file.metadata_sha256}", where=redact(url))
        return data

    @contextmanager
    def open(self, file: IndexFile) -> Iterator[SeekableFile]:
        """Open a listed wheel for reading in place, by range requests: only the parts that are read are fetched.

        Raises:
            RangesUnsupportedError: its server answers with whole files only.
        """
        if urlsplit(file.url).scheme == "file":
            with _local_path(file.url).open("rb") as local:
                yield local
        else:
            yield RemoteFile(self._http, file.url, size=file.size)

    def _read(self, project: str) -> tuple[IndexFile, ...]:
        url = urljoin(self.url, f"{project}/")
        if urlsplit(url).scheme == "file":
            return _read_local(url)
        try:
            return parse_page(self._http.page(url, accept=ACCEPT, limit=MAX_PAGE))
        except NotFoundError:
            return ()


def indexes_of(spec: StackSpec | None, http: Http) -> dict[str, Index]:
    """Give the indexes of a stack by name: the default one and those that it lists itself."""
    found = {DEFAULT: Index(DEFAULT, configured_default(), http)}
    for table in spec.index if spec else ():
        found[table.name] = Index(table.name, table.url, http, frozenset(table.packages))
    return found


def configured_default(environ: Mapping[str, str] = os.environ) -> str:
    """Find the default index as the user's installers know it; may hold credentials, so never print it unredacted.

    In this order: ``UV_DEFAULT_INDEX``, ``UV_INDEX_URL``, the user's and the system's ``uv.toml``,
    ``PIP_INDEX_URL`` and pip's configuration files, pip's own built-in default.

    Raises:
        UsageError: a configuration file is malformed.
    """
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if value := environ.get(variable, "").strip():
            return value.partition("=")[2] if "://" in value.partition("=")[2] else value  # uv allows NAME=URL
    return _from_uv_files(environ) or _from_pip() or _pip_built_in()


def _from_uv_files(environ: Mapping[str, str]) -> str | None:
    if named := environ.get("UV_CONFIG_FILE"):
        places = [Path(named)]
    else:
        home = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
        places = [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]
    for path in places:
        if not path.is_file() or path.stat().st_size > _MAX_CONFIG:
            continue
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"not TOML: {error}", where=path) from error
        listed = settings.get("index", [])
        default = next((row.get("url") for row in listed if isinstance(row, dict) and row.get("default")), None)
        url = default or settings.get("index-url") or settings.get("pip", {}).get("index-url")
        if isinstance(url, str):
            return url
    return None


def _from_pip() -> str | None:
    """Ask pip for what its files and ``PIP_INDEX_URL`` say; it knows their places and precedence."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    here = Path.cwd()  # where that is gone, this says so; pip would only fail
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=here)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"pip's configuration cannot be read ({reason})", fix="run pip config debug")
    values = {}
    for line in result.stdout.splitlines():
        key, _, value = line.partition("=")
        values[key.strip()] = value.strip().strip("'\"")
    for key in (":env:.index-url", "install.index-url", "global.index-url"):
        if values.get(key):
            return values[key]
    return None


def _pip_built_in() -> str:
    """Give the default that pip was built with, so that the name of no registry stands in this package."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError as error:
        raise MachineError("no package index is configured", fix="set UV_DEFAULT_INDEX or PIP_INDEX_URL") from error
    return str(PyPI.simple_url)


def _local_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _read_local(url: str) -> tuple[IndexFile, ...]:
    folder = _local_path(url)
    for name, media_type in (("index.html", "text/html"), ("index.json", "application/vnd.pypi.simple.v1+json")):
        path = folder / name
        if path.is_file():
            if path.stat().st_size > MAX_PAGE:
                raise IntegrityError(f"larger than {MAX_PAGE} bytes", where=path)
            return parse_page(Page(url, media_type, path.read_bytes()))
    return ()

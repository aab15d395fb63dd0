"""A package index on the loopback interface: what pip has no options for, put into the pages that it reads.

pip takes one flat list of indexes, knows no overrides, and downloads gigabytes to resolve: even where an index offers
METADATA beside the wheels (PEP 658), it fetches every wheel that it chose. This index lists each package from the one
index that the stack file names for it, shows only wheels that fit the target and were there on the stack's day, and
serves in their place wheels that hold nothing but METADATA, with the stack's overrides applied to it.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote, unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stack_builder.errors import StackbError
from stack_builder.resolve.model import Request
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.facts import MAX_METADATA
from stack_builder.wheels.index import Index
from stack_builder.wheels.layout import read_layout
from stack_builder.wheels.simple import IndexFile

_JSON = "application/vnd.pypi.simple.v1+json"
_REQUIRES = re.compile(rb"^Requires-Dist: *([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


class LoopbackIndex:
    """The pages of one resolution.

    Args:
        request: what is resolved.
        indexes: the real indexes by name.

    Attributes:
        failure: the first failure of a real index; pip only sees that something is not there.
    """

    def __init__(self, request: Request, indexes: Mapping[str, Index]) -> None:
        self._request = request
        self._indexes = indexes
        self._overrides = {override.package: override.version for override in request.spec.override}
        self.failure: StackbError | None = None

    def files(self, project: str) -> dict[str, IndexFile]:
        """The wheels of a project that count, by file name; of several uploads under one name the last listed."""
        index = self._indexes[self._request.index_of(project)]
        last_day = self._request.spec.stack.exclude_newer
        return {
            file.filename: file
            for file in index.files(project)
            if self._request.target.best([file.filename]) and _in_time(file, last_day)
        }

    def page(self, project: str) -> bytes:
        """The project's page (PEP 691)."""
        rows: list[dict[str, object]] = [
            {
                "filename": file.filename,
                "url": f"/files/{project}/{quote(file.filename)}",
                "hashes": {},  # those of the real wheels; what is served here is not them
                "yanked": file.yanked or False,
                **({"requires-python": file.requires_python} if file.requires_python else {}),
            }
            for file in self.files(project).values()
        ]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": rows}).encode()

    def stub(self, project: str, filename: str) -> bytes | None:
        """A wheel of that name that holds METADATA alone; None for a file that is not listed."""
        file = self.files(project).get(filename)
        if file is None:
            return None
        index = self._indexes[self._request.index_of(project)]
        metadata = index.metadata(file)
        if metadata is None:
            with index.open(file) as wheel:
                archive = WheelArchive(wheel, filename)
                entry = archive.find(f"{read_layout(archive).dist_info}/METADATA")
                if entry is None:
                    return None
                metadata = archive.read(entry, MAX_METADATA)
        return _wheel_of(_REQUIRES.sub(self._overridden, metadata), filename)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve on a free port of the loopback interface; gives the index address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _overridden(self, line: re.Match[bytes]) -> bytes:
        try:
            requirement = Requirement(line[1].decode("utf-8", "replace"))
        except InvalidRequirement:
            return line[0]
        version = self._overrides.get(canonicalize_name(requirement.name))
        if version is None:
            return line[0]
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        marker = f"; {requirement.marker}" if requirement.marker else ""
        return f"Requires-Dist: {requirement.name}{extras}{version}{marker}".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, index: LoopbackIndex, *args: object) -> None:
        self._index = index
        super().__init__(*args)  # type: ignore[arg-type]  # what the server passes on: socket, address, itself

    def do_GET(self) -> None:
        """Answer for a page or for a wheel."""
        try:
            if self._index.failure is not None:  # pip would ask for everything else in vain
                raise self._index.failure
            body, kind = self._body()
        except StackbError as error:
            self._index.failure = error
            body, kind = None, ""
        self.send_response(HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def _body(self) -> tuple[bytes | None, str]:
        match [unquote(part) for part in self.path.strip("/").split("/")]:
            case ["simple", project]:
                return self._index.page(canonicalize_name(project)), _JSON
            case ["files", project, filename]:
                return self._index.stub(canonicalize_name(project), filename), "application/octet-stream"
            case _:
                return None, ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing; pip's own words are what matters."""


def _wheel_of(metadata: bytes, filename: str) -> bytes:
    folder = "-".join(filename.split("-")[:2]) + ".dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(f"{folder}/METADATA", metadata)
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: stackb\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{folder}/RECORD", "")
    return buffer.getvalue()


def _in_time(file: IndexFile, last_day: date | None) -> bool:
    """Whether a file was there on the stack's day. Files of unknown age count: explicit indexes give no times."""
    return last_day is None or file.uploaded is None or file.uploaded[:10] <= last_day.isoformat()

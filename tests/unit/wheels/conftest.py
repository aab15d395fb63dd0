"""Wheels made to order, and an index on the loopback interface that misbehaves on request."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import socket
import struct
import threading
import time
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

MakeWheel = Callable[..., bytes]


@pytest.fixture
def make_wheel() -> MakeWheel:
    """``make_wheel(name, version, files)``: the bytes of a correct wheel, written by the standard library."""

    def make(
        name: str = "demo", version: str = "1.0", files: Mapping[str, bytes] | None = None, **extra: bytes
    ) -> bytes:
        info = f"{name}-{version}.dist-info"
        content = dict(files or {f"{name}/__init__.py": b"x = 1\n"})
        content[f"{info}/METADATA"] = extra.get(
            "metadata", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        )
        content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        if "entry_points" in extra:
            content[f"{info}/entry_points.txt"] = extra["entry_points"]
        content[f"{info}/RECORD"] = extra.get("record", record_of(content, f"{info}/RECORD"))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in content.items():
                archive.writestr(path, data)
        return out.getvalue()

    return make


def record_of(content: Mapping[str, bytes], own: str) -> bytes:
    lines = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"]).encode()


@dataclass
class Request:
    """What the server saw, and how many bytes of body it sent."""

    path: str
    range: str | None
    headers: dict[str, str]
    sent: int = 0


@dataclass
class IndexServer:
    """Files, project pages and faults; ``faults[path]`` is used up one per request.

    Faults: ``500``, ``404``, ``reset:N`` and ``cut:N`` (after N bytes, by RST or FIN), ``stall:N``, ``more`` (announces
    ten bytes that never come), ``other-range``, ``no-range``, ``to:URL`` (redirect).
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    raw_pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    faults: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    log: list[Request] = field(default_factory=list)
    html: bool = False
    ranges: bool = True
    pace: tuple[int, float] | None = None  # bytes, seconds between
    over: threading.Event = field(default_factory=threading.Event)

    def add(self, filename: str, data: bytes, **row: Any) -> None:
        """Serve a wheel and list it on its project's page."""
        self.files[f"/files/{filename}"] = data
        project = filename.partition("-")[0].replace("_", "-")
        hashes = {"sha256": row.pop("sha256", hashlib.sha256(data).hexdigest())}
        self.rows[project].append({"filename": filename, "url": f"/files/{filename}", "hashes": hashes, **row})

    def requests(self, filename: str) -> list[Request]:
        return [r for r in self.log if r.path == f"/files/{filename}"]

    def page(self, project: str) -> tuple[str, bytes] | None:
        if project in self.raw_pages:
            return self.raw_pages[project]
        if project not in self.rows:
            return None
        if self.html:
            links = "".join(
                f'<a href="{r["url"]}#sha256={r["hashes"]["sha256"]}"'
                + (f' data-yanked="{html.escape(str(r["yanked"]))}"' if "yanked" in r else "")
                + (f' data-requires-python="{html.escape(r["requires-python"])}"' if "requires-python" in r else "")
                + (f' data-core-metadata="sha256={r["core-metadata"]["sha256"]}"' if "core-metadata" in r else "")
                + f">{r['filename']}</a><br>\n"
                for r in self.rows[project]
            )
            return "text/html; charset=utf-8", f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode()
        body = {"meta": {"api-version": "1.1"}, "name": project, "files": self.rows[project]}
        return "application/vnd.pypi.simple.v1+json", json.dumps(body).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        index = self.server.index
        seen = Request(self.path, self.headers["Range"], dict(self.headers))
        index.log.append(seen)
        fault = index.faults[self.path].popleft() if index.faults[self.path] else ""
        kind, _, argument = fault.partition(":")
        if kind == "to":
            return self._head(302, 0, Location=argument)
        if kind in ("500", "404", "401"):
            return self._head(int(kind), 0)
        if self.path.startswith("/simple/"):
            page = index.page(self.path.strip("/").partition("/")[2])
            if page is None:
                return self._head(404, 0)
            self._head(200, len(page[1]), **{"Content-Type": page[0]})
            self.wfile.write(page[1])
            return None
        data = index.files.get(self.path)
        if data is None:
            return self._head(404, 0)
        return self._file(seen, data, kind, int(argument or 0))

    def _file(self, seen: Request, data: bytes, kind: str, limit: int) -> None:
        start, stop, extra = 0, len(data), {}
        status = 200
        if seen.range and self.server.index.ranges and kind != "no-range":
            first, _, last = seen.range.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            stop = int(last) + 1 if first and last else len(data)
            status, shift = 206, 1 if kind == "other-range" else 0
            extra["Content-Range"] = f"bytes {start + shift}-{stop - 1 + shift}/{len(data)}"
        body = data[start:stop]
        self._head(status, len(body) + (10 if kind == "more" else 0), **extra)
        piece, pause = self.server.index.pace or (1 << 16, 0.0)
        end = limit if kind in ("reset", "cut", "stall") else len(body)
        for at in range(0, min(end, len(body)), piece):
            data = body[at : min(at + piece, end)]
            seen.sent += len(data)  # before it leaves: whoever has it all finds it counted
            self.wfile.write(data)
            if pause:
                time.sleep(pause)
        if kind == "stall":
            self.server.index.over.wait(20)
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if kind:
            self.close_connection = True
            if kind == "reset":
                self.connection.close()

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    index: IndexServer

    def handle_error(self, *_: object) -> None:
        """Clients that go away are what these tests are about."""


@pytest.fixture
def index_server() -> Iterator[IndexServer]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.index = IndexServer(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.index
    server.index.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def stack_folder(tmp_path: Path, index_server: IndexServer) -> Callable[[], Path]:
    """``stack_folder()``: a stack whose lock holds every file that the server has right now."""

    def make() -> Path:
        folder = tmp_path / "stacks" / "demo"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stack.toml").write_text(
            '[stack]\nname = "demo"\ndescription = "made for a test"\npython = "3.11"\ncuda = "13.0"\n'
            'gpu = ["sm_120"]\nmin_driver = "580"\n[requires]\ndemo = "==1.0"\n'
            '[base]\nrecipe = "debian-bookworm"\nglibc = "2.36"\n'
        )
        artifacts = [
            {"name": path.split("/")[-1].partition("-")[0].replace("_", "-"), "version": path.split("-")[1]}
            | {"filename": path.split("/")[-1], "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for path, data in sorted(index_server.files.items())
            if path.endswith(".whl")
        ]
        lock = {"schema_version": 1, "stack": "demo", "python": "3.11", "platform": "linux_x86_64"}
        lock |= {"resolver": "none", "exclude_newer": None, "artifacts": artifacts}
        lock["requirements_sha256"] = hashlib.sha256(b"").hexdigest()
        (folder / "artifacts.json").write_text(json.dumps(lock))
        (folder / "requirements.txt").write_text("")
        return folder

    return make

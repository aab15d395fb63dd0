"""Small wheels on package indexes of the loopback interface, and stack folders that use them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TODAY = "2026-11-28T12:00:00Z"


@dataclass
class Row:
    """One row of an index page, and the bytes behind it."""

    filename: str
    data: bytes
    sha256: str
    uploaded: str
    yanked: str | bool = False


@dataclass
class PackageIndex:
    """An index that lists what it is given; ``asked`` holds the projects it was asked for."""

    url: str = ""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, name: str, version: str, *requires: str, **how: object) -> Row:
        """Publish a wheel; see :func:`wheel`. ``uploaded``, ``yanked`` and ``sha256`` set the row's fields."""
        uploaded, yanked = str(how.pop("uploaded", TODAY)), how.pop("yanked", False)
        sha256 = how.pop("sha256", None)
        filename, data = wheel(name, version, *requires, **how)  # type: ignore[arg-type]
        row = Row(filename, data, str(sha256 or hashlib.sha256(data).hexdigest()), uploaded, yanked)  # type: ignore[arg-type]
        self.rows.setdefault(name, []).append(row)
        return row

    def page(self, project: str) -> bytes | None:
        """The project's page (PEP 691)."""
        if project not in self.rows:
            return None
        files = [
            {
                "filename": row.filename,
                "url": f"/files/{row.sha256}/{row.filename}",
                "hashes": {"sha256": row.sha256},
                "size": len(row.data),
                "upload-time": row.uploaded,
                "yanked": row.yanked,
            }
            for row in self.rows[project]
        ]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": files}).encode()

    def file(self, sha256: str) -> bytes | None:
        """The bytes of a row."""
        return next((row.data for rows in self.rows.values() for row in rows if row.sha256 == sha256), None)


def wheel(
    name: str,
    version: str,
    *requires: str,
    tag: str = "py3-none-any",
    inner_version: str | None = None,
    files: dict[str, bytes] | None = None,
) -> tuple[str, bytes]:
    """File name and bytes of a wheel, written by the standard library."""
    plain = name.replace("-", "_")
    info = f"{plain}-{inner_version or version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {inner_version or version}\n"]
    extras = sorted(set(re.findall(r'extra == "([\w-]+)"', " ".join(requires))))
    metadata += [f"Provides-Extra: {extra}\n" for extra in extras]
    metadata += [f"Requires-Dist: {line}\n" for line in requires]
    content = {**(files or {f"{plain}/__init__.py": f"{version!r}\n".encode()})}
    content[f"{info}/METADATA"] = "".join(metadata).encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for path, data in content.items()
    }
    lines = [f"{path},sha256={digest.decode()},{len(content[path])}\n" for path, digest in digests.items()]
    content[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return f"{plain}-{version}-{tag}.whl", out.getvalue()


@pytest.fixture
def serve_index() -> Iterator[Callable[[], PackageIndex]]:
    """Start an index; each call starts another one."""
    servers: list[ThreadingHTTPServer] = []

    def start() -> PackageIndex:
        index = PackageIndex()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = self.path.strip("/").split("/")
                if parts[0] == "simple":
                    index.asked.append(parts[1])
                    self._send(index.page(parts[1]), "application/vnd.pypi.simple.v1+json")
                else:
                    self._send(index.file(parts[1]), "application/octet-stream")

            do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

            def _send(self, body: bytes | None, kind: str) -> None:
                status, whole, headers = 200 if body is not None else 404, body or b"", {}
                asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
                part = whole
                if body is not None and asked:
                    start = int(asked[1]) if asked[1] else max(0, len(whole) - int(asked[2]))
                    stop = min(int(asked[2]) + 1, len(whole)) if asked[1] and asked[2] else len(whole)
                    status, part = 206, whole[start:stop]
                    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(whole)}"
                self.send_response(status)
                for key, value in {"Content-Type": kind, "Content-Length": str(len(part)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(part)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        return index

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def default_index(
    serve_index: Callable[[], PackageIndex], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PackageIndex:
    """The default index of uv, pip and stackb; no configuration of the machine gets in."""
    index = serve_index()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-configuration"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")  # must not reach uv: it would drop the overrides
    monkeypatch.setenv("UV_PRERELEASE", "allow")  # nor this
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_CONSTRAINT", "/nowhere/constraints.txt")  # must not reach a resolver
    return index


@pytest.fixture
def stack_folder(tmp_path: Path) -> Callable[..., Path]:
    """``stack_folder(more, **requires)``: a folder with a stack.toml; ``more`` is appended to it."""

    def make(more: str = "", /, **requires: str) -> Path:
        folder = tmp_path / "stack"
        folder.mkdir(exist_ok=True)
        roots = "".join(f'{name.replace("_", "-")} = "{specifier}"\n' for name, specifier in requires.items())
        (folder / "stack.toml").write_text(
            '[stack]\nname = "demo"\ndescription = "d"\npython = "3.11"\ncuda = "13.0"\ngpu = ["sm_120"]\n'
            f'min_driver = "580"\nexclude_newer = 2026-11-28\n\n[requires]\n{roots}\n'
            f'[base]\nrecipe = "debian-bookworm"\nglibc = "2.36"\n{more}'
        )
        return folder

    return make

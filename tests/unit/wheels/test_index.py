"""Index pages, JSON and HTML; wheels read in place; which index is the default."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.http import Http, Page
from stack_builder.wheels.index import Index, configured_default
from stack_builder.wheels.remote import BLOCK, FIRST_TAIL, RangesUnsupportedError, RemoteFile
from stack_builder.wheels.simple import IndexFile, parse_page

NAME = "demo-1.0-py3-none-any.whl"
JSON = "application/vnd.pypi.simple.v1+json"
Make = Callable[..., bytes]


@pytest.fixture
def http() -> Iterator[Http]:
    with Http(stall=0.5, attempts=3, sleep=lambda _: None) as client:
        yield client


def index(server: Any, http: Http) -> Index:
    return Index("default", f"{server.url}/simple", http)


@pytest.mark.parametrize("as_html", [False, True])
def test_both_forms_say_the_same(index_server: Any, http: Http, make_wheel: Make, as_html: bool) -> None:
    data, metadata = make_wheel(), b"Name: demo\n"
    described = {"sha256": hashlib.sha256(metadata).hexdigest()}
    index_server.html = as_html
    index_server.add(NAME, data, yanked='broken "build" & <more>', **{"core-metadata": described})
    index_server.add(NAME.replace("1.0", "1.1"), b"other", **{"requires-python": ">=3.9,<4"})
    first, second = index(index_server, http).files("Demo")
    assert (first.filename, first.url) == (NAME, f"{index_server.url}/files/{NAME}")
    assert (first.sha256, first.yanked) == (hashlib.sha256(data).hexdigest(), 'broken "build" & <more>')
    assert (first.metadata_sha256, second.metadata_sha256) == (described["sha256"], None)
    assert (second.requires_python, second.yanked) == (">=3.9,<4", None)


def test_json_gives_size_and_time(index_server: Any, http: Http) -> None:
    index_server.add(NAME, b"x", size=1, **{"upload-time": "2026-02-24T21:36:00Z"})
    index_server.add(NAME, b"yy", sha256=hashlib.sha256(b"yy").hexdigest().upper(), yanked=True)
    first, second = index(index_server, http).find("demo", NAME)
    assert (first.size, first.uploaded) == (1, "2026-02-24T21:36:00Z")
    assert (second.sha256, second.yanked) == (hashlib.sha256(b"yy").hexdigest(), "no reason given")


def test_pages_are_read_once_and_unknown_projects_are_empty(index_server: Any, http: Http) -> None:
    index_server.add(NAME, b"x")
    found = index(index_server, http)
    assert found.files("demo") == found.files("demo")
    assert found.files("nothing") == ()
    assert [request.path for request in index_server.log] == ["/simple/demo/", "/simple/nothing/"]


def test_an_explicit_index_serves_its_packages_only(index_server: Any, http: Http) -> None:
    explicit = Index("cu130", f"{index_server.url}/simple", http, frozenset({"torch"}))
    with pytest.raises(UsageError, match="index 'cu130' does not list package 'demo'"):
        explicit.files("demo")
    assert index_server.log == []


@pytest.mark.parametrize("url", ["notaurl", "ftp://index.example/simple", "index.example/simple", ""])
def test_an_index_needs_an_address(http: Http, url: str) -> None:
    with pytest.raises(UsageError, match=r"neither http\(s\) nor file"):
        Index("default", url, http)


def test_metadata_beside_the_wheel_is_checked(index_server: Any, http: Http) -> None:
    good, url = b"Name: demo\n", f"{index_server.url}/files/{NAME}"
    index_server.files[f"/files/{NAME}.metadata"] = good
    found = index(index_server, http)
    sha256 = hashlib.sha256(good).hexdigest()
    assert found.metadata(IndexFile(NAME, url, None, metadata_sha256=sha256)) == good
    assert found.metadata(IndexFile(NAME, url, None)) is None
    assert found.metadata(IndexFile("gone", url + "x", None, metadata_sha256=sha256)) is None
    with pytest.raises(IntegrityError, match="the index says 0000"):
        found.metadata(IndexFile(NAME, url, None, metadata_sha256="0" * 64))


def html_page(body: str, url: str = "https://index.example/simple/demo/") -> tuple[IndexFile, ...]:
    return parse_page(Page(url, "text/html", body.encode()))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('<a href="file:///etc/x.whl">x</a>', "links to a file address"),
        ('<a href="http://index.example/x.whl">x</a>', "links to a http address"),
        ('<base href="http://other.example/"><a href="x.whl">x</a>', "links to a http address"),
        ('<base href="file:///etc/"><a href="x.whl">x</a>', "links to a file address"),
        (f'<a href="{"a" * 200_000}">x</a>', "endless tag"),
        (f'<a href="x.whl" data-yanked="{"a" * 60_000}">x</a>', "no text of at most"),
        ("<!--" * 100_000, "endless tag"),
        ("<a " + "b='" * 100_000, "endless tag"),
        ('<a href="/files/a%2Fb.whl">x</a>', "not plain"),
        ('<a href="/files/a%00.whl">x</a>', "not plain"),
    ],
)
def test_refuses_hostile_html(body: str, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        html_page(body)


def test_navigation_is_no_file() -> None:
    assert html_page('<a href="../">up</a> <a href="/help.html">help</a> <a name="here">') == ()


def test_html_across_the_parser_s_pieces() -> None:
    links = [f'<a href="../../f/demo-{n}-py3-none-any.whl#sha256={n:064x}">demo</a>' for n in range(5000)]
    found = html_page("<html>" + "\n".join(links))
    assert [int(file.sha256 or "", 16) for file in found] == list(range(5000))
    assert found[17].url == "https://index.example/f/demo-17-py3-none-any.whl"


@pytest.mark.parametrize(
    ("media_type", "body", "reason"),
    [
        (JSON, b"{", "malformed"),
        (JSON, b"[" * 100_000, "malformed"),
        (JSON, b"[]", "malformed"),
        (JSON, b'{"meta": {"api-version": "2.0"}, "files": []}', "not 1.x"),
        (JSON, b'{"meta": {"api-version": "1.0"}, "files": [{}]}', "malformed"),
        (JSON, b'{"meta": {"api-version": "1.0"}, "files": [{"filename": 1, "url": "", "hashes": {}}]}', "malformed"),
        ("application/pdf", b"", "answers with application/pdf"),
        ("", b"", "answers with nothing"),
    ],
)
def test_refuses_malformed_pages(media_type: str, body: bytes, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        parse_page(Page("https://index.example/simple/demo/", media_type, body))


def test_json_links_are_held_to_the_same_rules() -> None:
    row = {"filename": NAME, "url": "file:///etc/passwd", "hashes": {}}
    body = json.dumps({"meta": {"api-version": "1.0"}, "files": [row]}).encode()
    with pytest.raises(IntegrityError, match="links to a file address"):
        parse_page(Page("https://index.example/simple/demo/", JSON, body))


def test_an_index_on_disk(tmp_path: Path, http: Http, make_wheel: Make) -> None:
    page = tmp_path / "simple" / "demo"
    page.mkdir(parents=True)
    (page / NAME).write_bytes(make_wheel())
    (page / "index.html").write_text(f'<a href="{NAME}">{NAME}</a>')
    found = Index("disk", (tmp_path / "simple").as_uri(), http)
    (file,) = found.files("demo")
    with found.open(file) as opened:
        assert WheelArchive(opened, NAME).find("demo/__init__.py") is not None
    assert found.files("other") == ()


# --- reading in place -------------------------------------------------------------------------------------------


@pytest.fixture
def large(index_server: Any) -> bytes:
    noise = random.Random(5).randbytes(3 << 20)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("demo/first.txt", b"first")
        archive.writestr("demo/large.so", noise)
        archive.writestr("demo-1.0.dist-info/METADATA", b"Name: demo\n")
    index_server.files[f"/files/{NAME}"] = out.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("knows_size", [False, True])
def test_reads_a_wheel_in_place(index_server: Any, http: Http, large: bytes, knows_size: bool) -> None:
    remote = RemoteFile(http, f"{index_server.url}/files/{NAME}", size=len(large) if knows_size else None)
    archive = WheelArchive(remote, NAME)
    entry = archive.find("demo-1.0.dist-info/METADATA")
    assert entry is not None
    assert archive.read(entry, 100) == b"Name: demo\n"
    assert remote.requests == len(index_server.log) == 1
    first = archive.find("demo/first.txt")
    assert first is not None
    assert archive.read(first, 100) == b"first"
    sent = sum(request.sent for request in index_server.log)
    assert (remote.requests, remote.received) == (2, sent)
    assert sent <= FIRST_TAIL + 2 * BLOCK


def test_any_read_gives_the_file_s_bytes(index_server: Any, http: Http, large: bytes) -> None:
    remote = RemoteFile(http, f"{index_server.url}/files/{NAME}")
    chance = random.Random(6)
    for _ in range(60):
        at, length = chance.randrange(len(large) + 10), chance.choice([0, 1, 30, BLOCK, 300_000])
        remote.seek(at)
        assert remote.read(length) == large[at : at + length]
    remote.seek(0)
    assert remote.read() == large


def test_a_server_without_ranges_costs_nothing(index_server: Any, http: Http, large: bytes) -> None:
    index_server.ranges = False
    index_server.pace = (1 << 16, 0.005)
    with pytest.raises(RangesUnsupportedError, match="ignores range requests"):
        WheelArchive(RemoteFile(http, f"{index_server.url}/files/{NAME}", size=len(large)), NAME)
    assert len(index_server.log) == 1
    assert index_server.log[0].sent < len(large)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [(["other-range"], "another range"), (["more"] * 3, "no usable answer"), (["cut:10"] * 3, "no usable answer")],
)
def test_contradictions_are_refused(
    index_server: Any, http: Http, large: bytes, faults: list[str], reason: str
) -> None:
    index_server.faults[f"/files/{NAME}"] = deque(faults)
    with pytest.raises(Exception, match=reason) as caught:
        WheelArchive(RemoteFile(http, f"{index_server.url}/files/{NAME}", size=len(large)), NAME)
    assert type(caught.value).__name__ in ("IntegrityError", "MachineError")


def test_another_size_than_the_index_said(index_server: Any, http: Http, large: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"bytes on the server|another range"):
        WheelArchive(RemoteFile(http, f"{index_server.url}/files/{NAME}", size=len(large) - 5), NAME)


# --- the default index ------------------------------------------------------------------------------------------


def test_default_index_follows_the_installers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    none = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert configured_default({"UV_DEFAULT_INDEX": "https://a.example/simple"}) == "https://a.example/simple"
    assert configured_default({"UV_DEFAULT_INDEX": "mine=https://a.example/simple"}) == "https://a.example/simple"
    assert configured_default({"UV_INDEX_URL": "https://b.example/s?a=b"}) == "https://b.example/s?a=b"
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text('[[index]]\nurl = "https://c.example/simple"\ndefault = true\n')
    assert configured_default(none) == "https://c.example/simple"
    (tmp_path / "uv" / "uv.toml").write_text("not toml")
    with pytest.raises(UsageError, match=r"uv\.toml: not TOML"):
        configured_default(none)
    (tmp_path / "uv" / "uv.toml").unlink()
    monkeypatch.setenv("PIP_INDEX_URL", "https://d.example/simple")
    assert configured_default(none) == "https://d.example/simple"


def test_built_in_default_is_pip_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert configured_default({"XDG_CONFIG_HOME": str(tmp_path)}) in "".join(shown.split())

"""Hostile index pages, stacks, locks, logs, models and server answers, each given to the command that reads it."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.archives import WHEEL
from tests.hardening.hostile import BOUND, attempt
from tests.hardening.plugin import Recorder
from tests.hardening.test_hostile_archives import good
from tests.hardening.tiny import STACK
from tests.hardening.web import EVENT, FINE, HTML, JSON, Answer, Web


def locked(folder: Path, wheel: bytes) -> dict[str, object]:
    """A stack with a lock of one wheel, as JSON."""
    artifact = {"name": "demo", "version": "1.0", "filename": WHEEL, "size": len(wheel)}
    artifact["sha256"] = hashlib.sha256(wheel).hexdigest()
    body: dict[str, object] = {
        "schema_version": 1, "stack": "tiny", "python": "3.11", "platform": "linux_x86_64", "resolver": "none",
        "artifacts": [artifact], "requirements_sha256": hashlib.sha256(b"").hexdigest(),
    }  # fmt: skip
    (folder / "tiny").mkdir()
    (folder / "tiny" / "stack.toml").write_text(STACK)
    (folder / "tiny" / "requirements.txt").write_text("")
    (folder / "tiny" / "artifacts.json").write_text(json.dumps(body))
    return body


# --- index pages ---


def row(**changed: object) -> bytes:
    files = [{"filename": WHEEL, "url": "/files/x.whl", "hashes": {}, **changed}]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "demo", "files": files}).encode()


PAGES: dict[str, tuple[Answer, int, str]] = {
    "HTML: three megabytes in one attribute": (
        (200, HTML, b'<a href="' + b"a" * (3 << 20) + b'">x</a>'), 1, "endless tag"),
    "HTML: a comment that never ends": ((200, HTML, b"<!--" * 500_000), 1, "endless tag"),
    "HTML: a link to a file": ((200, HTML, b'<a href="file:///etc/passwd.whl">x</a>'), 1, "links to a file address"),
    "HTML: base address of a file": (
        (200, HTML, b'<base href="file:///etc/"><a href="x.whl">x</a>'), 1, "links to a file address"),
    "HTML: base that is no address": ((200, HTML, b'<base href="http://[::1"><a href="x.whl">x</a>'), 1, "malformed"),
    "JSON: three megabytes in one value": ((200, JSON, row(yanked="x" * (3 << 20))), 1, "no text of at most"),
    "JSON: 100,000 brackets": ((200, JSON, b"[" * 100_000), 1, "malformed index page"),
    "JSON: a file name with '..'": ((200, JSON, row(filename="../../x.whl")), 1, "not plain"),
    "JSON: hashes that are no object": ((200, JSON, row(hashes=[1])), 1, "malformed index page"),
    "JSON: no files": ((200, JSON, b'{"meta":{"api-version":"1.0"}}'), 1, "malformed index page"),
    "a page of 80 MB in 80 kB": (
        (200, {**HTML, "Content-Encoding": "gzip"}, gzip.compress(bytes(80 << 20), 1)), 1, "larger than"),
    "a page of another kind": ((200, {"Content-Type": "image/png"}, b""), 1, "not with a Simple API page"),
    "redirect to a file": ((302, {"Location": "file:///etc/passwd"}, b""), 1, "leads to a file: address"),
    "redirect that never ends": ((302, {"Location": "/simple/demo/"}, b""), 3, "redirects more than"),
    "redirect to no address": ((302, {"Location": "http://[::1"}, b""), 3, "no usable answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_index_page(
    name: str, server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardened: Recorder
) -> None:
    answer, code, reason = PAGES[name]
    locked(tmp_path, good())
    server.answers["/simple/demo/"] = answer
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    monkeypatch.setattr("stack_builder.wheels.http.MAX_PAUSE", 0.01)
    done = attempt(["fetch", "tiny"], tmp_path)
    assert (done.code, reason in done.line) == (code, True), done
    assert not list((tmp_path / "cache" / "wheels").rglob("*.whl"))
    hardened("indexes", name, code=code, shown=done.line, bound=BOUND)


def test_a_page_without_hashes_is_no_way_round_the_lock(
    server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardened: Recorder
) -> None:
    wheel = good()
    locked(tmp_path, wheel)
    server.answers["/simple/demo/"] = (200, JSON, row())
    server.answers["/files/x.whl"] = (200, {}, wheel[:-1] + b"!")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    done = attempt(["fetch", "tiny"], tmp_path)
    assert done.code == 1, done
    assert not list((tmp_path / "cache" / "wheels").rglob("*.whl"))
    hardened("indexes", "no hash on the page, other bytes behind it", code=1, shown=done.line, bound=BOUND)


# --- stack.toml, locks, receipts ---

Edit = Callable[[Path, dict[str, object]], object]


def toml(data: bytes) -> Edit:
    return lambda folder, _body: (folder / "tiny" / "stack.toml").write_bytes(data)


def lock(**changed: object) -> Edit:
    return lambda folder, body: (folder / "tiny" / "artifacts.json").write_text(json.dumps({**body, **changed}))


def raw_lock(data: bytes) -> Edit:
    return lambda folder, _body: (folder / "tiny" / "artifacts.json").write_bytes(data)


DOCUMENTS: dict[str, tuple[Edit, str]] = {
    "stack.toml: a key of 400,000 parts": (toml(b"a." * 400_000 + b"b = 1"), "a key of more than"),
    "stack.toml: 100,000 brackets": (toml(b"x = " + b"[" * 100_000), "not TOML"),
    "stack.toml: a number of 5,000 digits": (toml(b"x = " + b"9" * 5000), "not TOML"),
    "stack.toml: not UTF-8": (toml(b"\xff\xfe"), "not UTF-8"),
    "stack.toml: two megabytes": (toml(b"#" * (2 << 20)), "larger than"),
    "stack.toml: terminal commands": (toml(b'[stack]\n"\\u001b[2J" = 1'), "stack"),
    "lock: 100,000 brackets": (raw_lock(b"[" * 100_000), "not a lock"),
    "lock: NaN": (raw_lock(b'{"schema_version": NaN}'), "not a lock"),
    "lock: not UTF-8": (raw_lock(b'{"\xff": 1}'), "not UTF-8"),
    "lock: a wheel named ../x.whl": (
        lock(artifacts=[{"name": "d", "version": "1", "filename": "../x.whl"}]), "not a lock"),
    "lock: a size of 4,000 digits": (
        lock(artifacts=[{"name": "d", "version": "1", "filename": WHEEL, "size": 10**4000}]), "not a lock"),
    "lock: artifacts that are text": (lock(artifacts="x"), "not a lock"),
    "lock: 65 megabytes": (raw_lock(b" " * (65 << 20)), "larger than"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_hostile_stack_or_lock(name: str, tmp_path: Path, hardened: Recorder) -> None:
    edit, reason = DOCUMENTS[name]
    edit(tmp_path, locked(tmp_path, good()))
    done = attempt(["fetch", "tiny", "--offline"], tmp_path)
    assert (done.code, reason in done.line) == (2, True), done
    hardened("documents", name, code=2, shown=done.line, bound=BOUND)


RECEIPTS = {
    "receipt: not UTF-8": (b'{"\xe9": 1}', "not UTF-8"),
    "receipt: 100,000 brackets": (b"[" * 100_000, "not a receipt"),
    "receipt: a list": (b"[]", "not a receipt: no JSON object"),
    "receipt: 17 megabytes": (b" " * (17 << 20), "larger than"),
}


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_hostile_receipt(name: str, tmp_path: Path, hardened: Recorder) -> None:
    from tests.unit.image.conftest import tar_bytes, write_oci_layout

    data, reason = RECEIPTS[name]
    write_oci_layout(tmp_path / "image", [tar_bytes({"x": b""})])
    (tmp_path / "r.json").write_bytes(data)
    done = attempt(["verify", "oci:image", "--receipt", "r.json"], tmp_path)
    assert (done.code, reason in done.line) == (2, True), done
    hardened("documents", name, code=2, shown=done.line, bound=BOUND)


# --- logs ---

LOGS = {
    "terminal commands in an error": (
        b"\x1b]0;owned\x07\x1b[2J\xc2\x9b2JImportError: libnvrtc.so.13: cannot open shared object file\xe2\x80\xae\n", 1),
    "a line of 30 MB": (b"RuntimeError: " + b"x" * (30 << 20), 3),
    "10,000 lines, each an exception": (b"ValueError: x\n" * 10_000, 3),
    "symbols of 10,000 characters": (b"ImportError: a.so: undefined symbol: _Z" + b"N1a" * 5000 + b"\n", 1),
    "4 MB of zeros": (bytes(4 << 20), 3),
    "half of UTF-16": (b"\xff\xfe" + "RuntimeError: x".encode("utf-16-le")[:-1], 3),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "text") for name in LOGS), *((next(iter(LOGS)), form) for form in ("json", "sarif"))]
)
def test_a_hostile_log(name: str, form: str, tmp_path: Path, hardened: Recorder) -> None:
    data, code = LOGS[name]
    (tmp_path / "log").write_bytes(data)
    done = attempt(
        ["explain", "log", "--format", form], tmp_path
    )  # which holds what it prints against control characters
    assert done.code == code, done
    assert done.out
    hardened("logs", name, code=code, shown=done.line, bound=BOUND)


# --- answers of a server under a bench ---

ANSWERS: dict[str, tuple[str, Answer]] = {
    "facts: NaN and infinite numbers": ("/server_info", (200, {}, b'{"version": "0.5.23", "tp_size": NaN, "dtype": 1e999}')),
    "facts: 100,000 brackets": ("/server_info", (200, {}, b"[" * 100_000)),
    "facts: 20 MB": ("/server_info", (200, {}, b" " * (20 << 20))),
    "facts: of wrong types": ("/server_info", (200, {}, b'{"internal_states": [7], "version": [], "tp_size": {}}')),
    "metrics: no numbers": ("/metrics", (200, {}, b"sglang:generation_tokens_total NaN\nsglang:x{" * 10_000)),
    "answers: no JSON": ("/v1/completions", (200, EVENT, b"data: {\n\n" * 1000)),
    "answers: an event of 9 MB": ("/v1/completions", (200, EVENT, b"data: " + b"x" * (9 << 20))),
    "answers: counts of wrong types": (
        "/v1/completions", (200, EVENT, b'data: {"usage": {"completion_tokens": "many"}}\n\ndata: [DONE]\n\n')),
    "answers: terminal commands in an error": (
        "/v1/completions", (500, {}, b'{"error": "\x1b[2J\x1b]0;owned\x07"}')),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_server(
    name: str, server: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardened: Recorder
) -> None:
    path, answer = ANSWERS[name]
    monkeypatch.setenv("STACKB_STATE_DIR", str(tmp_path / "state"))
    server.answers |= {"/v1/completions": (200, EVENT, FINE), "/v1/models": (200, {}, b'{"data": [{"id": "m"}]}')}
    server.answers[path] = answer
    call = ["bench", server.url, "--concurrency", "1", "--requests", "1", "--tokens", "4", "--output", "r.json"]
    done = attempt(call, tmp_path)
    assert done.code in (0, 1, 3), done
    json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert (done.code == 0) == (path != "/v1/completions"), done
    hardened("servers", name, code=done.code, shown=done.line, bound=BOUND)

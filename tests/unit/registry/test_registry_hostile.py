"""A registry that lies: whatever it says, no wrong byte is kept, no secret leaves, and memory stays bounded."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stack_builder.errors import IntegrityError, MachineError, StackbError, UsageError
from stack_builder.progress import Silent
from stack_builder.registry import session
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import Moved, pull
from tests.hardening.plugin import Recorder

OCI = "application/vnd.oci.image.manifest.v1+json"
Answer = tuple[int, dict[str, str], bytes]


class FakeRegistry(ThreadingHTTPServer):
    """Answers by path; remembers what it was asked, with which headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer | Callable[[BaseHTTPRequestHandler], Answer]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeRegistry

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        found = self.server.answers.get(self.path.partition("?")[0], (404, {}, b""))
        status, headers, body = found(self) if callable(found) else found
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = headers.get("Content-Length", str(len(body))) != str(len(body))

    do_HEAD = do_GET  # noqa: N815 - as the base class calls them

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(session, "pause", lambda _seconds: None)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


LAYER, CONFIG = b"layer" * 1000, b"{}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _serve(registry: FakeRegistry, layer: bytes = LAYER, **manifest: object) -> bytes:
    """Offer an honest image, to be spoilt."""
    body = {
        "schemaVersion": 2,
        "mediaType": OCI,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": _digest(CONFIG), "size": 2},
        "layers": [{"mediaType": "x", "digest": _digest(layer), "size": len(layer)}],
        **manifest,
    }
    data = json.dumps(body).encode()
    registry.answers["/v2/a/manifests/v1"] = (200, {"Content-Type": OCI}, data)
    registry.answers[f"/v2/a/blobs/{_digest(layer)}"] = (200, {}, layer)
    registry.answers[f"/v2/a/blobs/{_digest(CONFIG)}"] = (200, {}, CONFIG)
    return data


def _pull(registry: FakeRegistry, folder: Path, name: str = "a:v1") -> Moved:
    return pull(parse(f"{registry.host}/{name}"), folder / "image", Silent())


@pytest.fixture
def refused(registry: FakeRegistry, tmp_path: Path, hardened: Recorder) -> Callable[..., None]:
    """``refused(fault, error, says, name="a:v1")``: a pull ends with that, and nothing wrong is kept."""

    def check(fault: str, error: type[StackbError], says: str, name: str = "a:v1", *, shows: bool = True) -> None:
        with pytest.raises(error, match=says) as caught:
            _pull(registry, tmp_path, name)
        assert not (tmp_path / "image" / "index.json").exists()
        blobs = tmp_path / "image" / "blobs" / "sha256"
        for path in blobs.iterdir() if blobs.is_dir() else ():
            assert path.name.startswith(".") or hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        shown = f"stackb: {caught.value}" if shows else ""
        hardened("registries", f"pull: {fault}", code=caught.value.exit_code, shown=shown)

    return check


def test_the_honest_image_is_pulled(registry: FakeRegistry, tmp_path: Path) -> None:
    data = _serve(registry)
    assert _pull(registry, tmp_path).digest == _digest(data)


def test_other_bytes_than_the_digest_says(registry: FakeRegistry, tmp_path: Path, refused: Callable[..., None]) -> None:
    _serve(registry)
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (200, {}, LAYER[:-1] + b"!")
    refused("other bytes than the digest says", IntegrityError, "bytes have digest sha256:")
    assert not list((tmp_path / "image" / "blobs" / "sha256").glob(f".{_digest(LAYER).removeprefix('sha256:')}*"))


def test_more_bytes_than_the_manifest_says(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (200, {}, LAYER * 2000)
    refused("ten megabytes where five kilobytes were promised", IntegrityError, "more than the promised 5000 bytes")


def test_fewer_bytes_again_and_again(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (200, {"Content-Length": "5000"}, LAYER[:100])
    refused("a blob that breaks off again and again", MachineError, "no usable answer")


def test_a_connection_that_breaks_off_is_taken_up_by_range(registry: FakeRegistry, tmp_path: Path) -> None:
    _serve(registry)

    def half(request: BaseHTTPRequestHandler) -> Answer:
        asked = request.headers.get("Range")
        if asked is None:
            return 200, {"Content-Length": "5000"}, LAYER[:2000]
        assert asked == "bytes=2000-4999"
        return 206, {"Content-Range": "bytes 2000-4999/5000"}, LAYER[2000:]

    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = half
    _pull(registry, tmp_path)
    assert (tmp_path / "image/blobs/sha256" / _digest(LAYER).removeprefix("sha256:")).read_bytes() == LAYER


def test_another_range_than_was_asked_for(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)

    def wrong(request: BaseHTTPRequestHandler) -> Answer:
        if "Range" not in request.headers:
            return 200, {"Content-Length": "5000"}, LAYER[:2000]
        return 206, {"Content-Range": "bytes 0-2999/5000"}, LAYER[:3000]

    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = wrong
    refused("another range than was asked for", IntegrityError, "another range")


def test_a_damaged_part_of_an_earlier_run_is_fetched_anew(registry: FakeRegistry, tmp_path: Path) -> None:
    _serve(registry)
    blobs = tmp_path / "image" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    name = _digest(LAYER).removeprefix("sha256:")
    (blobs / f".{name}.part").write_bytes(b"rubbish")

    def ranges(request: BaseHTTPRequestHandler) -> Answer:
        if "Range" in request.headers:
            return 206, {"Content-Range": "bytes 7-4999/5000"}, LAYER[7:]
        return 200, {}, LAYER

    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = ranges
    _pull(registry, tmp_path)
    assert (blobs / name).read_bytes() == LAYER


def test_a_blob_on_disk_that_has_decayed_is_fetched_anew(registry: FakeRegistry, tmp_path: Path) -> None:
    _serve(registry)
    _pull(registry, tmp_path)
    path = tmp_path / "image" / "blobs" / "sha256" / _digest(LAYER).removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"x" * len(LAYER))
    assert _pull(registry, tmp_path).travelled == (_digest(LAYER),)
    assert path.read_bytes() == LAYER


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"])
def test_redirects_to_anything_but_the_web(registry: FakeRegistry, target: str, refused: Callable[..., None]) -> None:
    _serve(registry)
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (307, {"Location": target}, b"")
    refused(f"a blob at {target}", IntegrityError, "not followed")


def test_a_redirect_to_no_address_at_all(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (307, {"Location": "http://[bad"}, b"")
    refused("a blob at no address", MachineError, "no usable answer", shows=False)  # the resolver has a say


def test_endless_redirects(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)
    path = f"/v2/a/blobs/{_digest(LAYER)}"
    registry.answers[path] = (307, {"Location": path}, b"")
    refused("redirects that never end", MachineError, "redirects more than")


def test_another_manifest_than_was_asked_for_by_digest(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    data = _serve(registry)
    wanted = _digest(b"another")
    registry.answers[f"/v2/a/manifests/{wanted}"] = (200, {}, data)
    refused("another manifest than was asked for by digest", IntegrityError, "manifest's digest is", f"a@{wanted}")


@pytest.mark.parametrize(
    ("what", "data", "says"),
    [
        ("five megabytes", b"x" * (5 << 20), "larger than"),
        ("100,000 brackets", b"[" * 100_000, "not an image manifest"),
        ("a list", b"[]", "not an image manifest"),
        ("not UTF-8", b"\xff", "not an image manifest"),
        ("HTML", b'{"mediaType": "text/html"}', "media type 'text/html'"),
    ],
)
def test_manifests_that_are_none(
    registry: FakeRegistry, what: str, data: bytes, says: str, refused: Callable[..., None]
) -> None:
    registry.answers["/v2/a/manifests/v1"] = (200, {}, data)
    refused(f"a manifest that is {what}", IntegrityError, says)


@pytest.mark.parametrize(
    ("digest", "size"),
    [
        ("sha256:../../../../etc/passwd", 1),
        ("md5:" + "0" * 32, 1),
        ("sha256:" + "0" * 64, -1),
        ("sha256:" + "0" * 64, 1 << 60),
    ],
)
def test_descriptors_that_no_image_has(
    registry: FakeRegistry, digest: str, size: int, refused: Callable[..., None]
) -> None:
    _serve(registry, layers=[{"mediaType": "x", "digest": digest, "size": size}])
    refused(f"a layer of digest {digest[:12]}… and {size} bytes", IntegrityError, "not an image manifest: layers.0")


def test_an_image_larger_than_the_disk(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry, layers=[{"mediaType": "x", "digest": "sha256:" + "0" * 64, "size": 1 << 40}])
    refused("a layer larger than the disk", MachineError, "1099.5 GB needed", shows=False)


def _index(*digests: str, platform: dict[str, str] | None = None) -> bytes:
    entry = {"mediaType": OCI, "size": 10, "platform": platform or {"os": "linux", "architecture": "amd64"}}
    return json.dumps(
        {"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{**entry, "digest": d} for d in digests]}
    ).encode()


def test_an_index_leads_to_the_image_of_the_architecture(registry: FakeRegistry, tmp_path: Path) -> None:
    data = _serve(registry)
    registry.answers[f"/v2/a/manifests/{_digest(data)}"] = (200, {}, data)
    registry.answers["/v2/a/manifests/v1"] = (200, {}, _index(_digest(data), _digest(b"arm")))
    assert _pull(registry, tmp_path).digest == _digest(data)


def test_an_index_in_an_index(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    inner = _index(_digest(b"x"))
    registry.answers[f"/v2/a/manifests/{_digest(inner)}"] = (200, {}, inner)
    registry.answers["/v2/a/manifests/v1"] = (200, {}, _index(_digest(inner)))
    refused("an index in an index", IntegrityError, "index inside an index")


def test_an_index_without_this_architecture(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    arm = {"os": "linux", "architecture": "arm64"}
    index = _index(_digest(b"x"), _digest(b"y"), platform=arm)
    registry.answers["/v2/a/manifests/v1"] = (200, {}, index)
    refused("an index without this architecture", UsageError, "none of them for linux/amd64")


# --- accounts ------------------------------------------------------------------------------------------------------


def _log_in(folder: Path, host: str) -> str:
    auth = base64.b64encode(b"me:hunter2-secret").decode()
    (folder / "docker").mkdir()
    (folder / "docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return f"Basic {auth}"


def _guard(registry: FakeRegistry, challenge: str, wanted: str) -> None:
    """Let every path answer only to the right Authorization."""

    def guarded(answer: Answer) -> Callable[[BaseHTTPRequestHandler], Answer]:
        def reply(request: BaseHTTPRequestHandler) -> Answer:
            if request.headers.get("Authorization") == wanted:
                return answer
            return 401, {"WWW-Authenticate": challenge}, b""

        return reply

    registry.answers = {path: guarded(answer) for path, answer in registry.answers.items() if isinstance(answer, tuple)}


def test_a_token_is_fetched_with_the_users_password(registry: FakeRegistry, tmp_path: Path) -> None:
    basic = _log_in(tmp_path, registry.host)
    _serve(registry)
    scope = "repository:a:pull"
    _guard(registry, f'Bearer realm="http://{registry.host}/token",service="here",scope="{scope}"', "Bearer t0ken")
    registry.answers["/token"] = (200, {}, b'{"token": "t0ken"}')
    _pull(registry, tmp_path)
    path, headers = next(each for each in registry.asked if each[0].startswith("/token"))
    assert path == "/token?service=here&scope=repository%3Aa%3Apull"
    assert headers["Authorization"] == basic


@pytest.mark.parametrize("realm", ["http://127.0.0.2:9/token", "file:///etc/passwd", "ftp://x/y"])
def test_the_password_goes_to_no_unsafe_token_service(registry: FakeRegistry, tmp_path: Path, realm: str) -> None:
    _log_in(tmp_path, registry.host)
    _serve(registry)
    _guard(registry, f'Bearer realm="{realm}",service="here"', "Bearer t0ken")
    with pytest.raises(IntegrityError) as refused:
        _pull(registry, tmp_path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 7}', b'{"token": "a\\nb"}', b"[" * 100_000])
def test_answers_that_are_no_token(registry: FakeRegistry, body: bytes, refused: Callable[..., None]) -> None:
    _serve(registry)
    _guard(registry, f'Bearer realm="http://{registry.host}/token"', "Bearer t0ken")
    registry.answers["/token"] = (200, {}, body)
    refused("a token service that gives none", MachineError, "gives no token")


def test_the_password_stays_with_the_registry_when_it_redirects(
    registry: FakeRegistry, tmp_path: Path, hardened: Recorder
) -> None:
    basic = _log_in(tmp_path, registry.host)
    _serve(registry)
    _guard(registry, 'Basic realm="here"', basic)
    storage = FakeRegistry()
    storage.answers["/layer"] = (200, {}, LAYER)
    thread = threading.Thread(target=storage.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    location = f"http://{storage.host}/layer"
    registry.answers[f"/v2/a/blobs/{_digest(LAYER)}"] = (307, {"Location": location}, b"")
    try:
        _pull(registry, tmp_path)
    finally:
        storage.shutdown()
        storage.server_close()
        thread.join()
    assert [path for path, _ in storage.asked] == ["/layer"]
    assert "Authorization" not in storage.asked[0][1]
    hardened("registries", "redirect of a blob to another host, with a password for the first")


def test_no_account_says_what_to_do(registry: FakeRegistry, refused: Callable[..., None]) -> None:
    _serve(registry)
    _guard(registry, 'Basic realm="here"', "Basic x")
    refused("no account", MachineError, f"docker login {registry.host}")

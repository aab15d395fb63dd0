"""Push and pull against Debian's own registry on the loopback interface; the bytes are counted by a proxy."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack_builder.cli.app import run
from stack_builder.errors import IntegrityError, MachineError
from stack_builder.image import oci
from stack_builder.image.base.registry import RegistrySource
from stack_builder.image.oci import ImageConfig
from stack_builder.image.store import GZIP_LAYER, BlobStore
from stack_builder.progress import Silent
from stack_builder.registry import session
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import Moved, pull, push
from stack_builder.stack.receipt import LayerRecord
from tests.hardening.plugin import Recorder
from tests.registry import needs_registry, serving, stored

MIB = 1 << 20
# user and password as Apache's htpasswd writes them (bcrypt)
_USERS = "tester:$2b$04$A/uYpdk9Pp7mwXp6fxWPOu12JVrnntGs78hklTOzMp1t9h8O7N4zi\n"
_PASSWORD = "open sesame"

pytestmark = needs_registry


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pauses between attempts, and no credentials of whoever runs the tests."""
    monkeypatch.setattr(session, "pause", lambda _seconds: None)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[int]:
    """Port of a registry without accounts."""
    with serving(tmp_path / "registry") as port:
        yield port


class Proxy:
    """Passes bytes on to a registry, counts them, and breaks off where it is told to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.sent = self.received = 0
        self.breaks: Callable[[bytes], bool] = lambda _data: False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                if self.breaks(data):
                    break
                self.sent += len(data)
                server.sendall(data)
            for each in (client, server):
                each.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                self.received += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(registry: int) -> Iterator[Proxy]:
    """A proxy in front of the registry."""
    found = Proxy(registry)
    yield found
    found.close()


def _layer(store: BlobStore, name: str, size: int) -> LayerRecord:
    """A layer with one file of bytes that do not compress."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = size
        archive.addfile(entry, io.BytesIO(random.Random(name).randbytes(size)))
    blob = gzip.compress(plain.getvalue(), 0, mtime=0)
    diff_id = f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"
    return LayerRecord(name, store.add(blob), diff_id, len(blob), GZIP_LAYER)


def _image(folder: Path, *layers: tuple[str, int]) -> tuple[Path, str, list[LayerRecord]]:
    """An OCI layout; gives folder, digest, layers."""
    store = BlobStore(folder / "store")
    records = [_layer(store, name, size) for name, size in layers]
    image = oci.assemble(store, ImageConfig("amd64", {}, ["true"], {}), tuple(records))
    oci.write_layout(folder / "layout", store, image, "stackb/test:one")
    return folder / "layout", image.manifest_digest, records


def _push(image: Path, port: int, name: str = "team/image:v1", **options: object) -> Moved:
    return push(image, parse(f"127.0.0.1:{port}/{name}"), Silent(), **options)  # type: ignore[arg-type]


def _files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (folder / "blobs" / "sha256").iterdir()}


def test_an_image_comes_back_as_it_was(registry: int, tmp_path: Path) -> None:
    image, digest, _ = _image(tmp_path / "a", ("one", MIB), ("two", 3 * MIB))
    assert _push(image, registry).digest == digest
    back = pull(parse(f"127.0.0.1:{registry}/team/image:v1@{digest}"), tmp_path / "back", Silent())
    assert back.digest == digest
    assert _files(tmp_path / "back") == _files(image)
    if shutil.which("skopeo"):
        command = ["skopeo", "inspect", "--tls-verify=false", f"docker://127.0.0.1:{registry}/team/image:v1"]
        shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert shown["Digest"] == digest
        command = ["skopeo", "inspect", f"oci:{tmp_path / 'back'}:v1"]
        assert json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["Digest"] == digest


def test_a_tar_is_pushed_like_a_folder(registry: int, tmp_path: Path) -> None:
    image, digest, _ = _image(tmp_path / "a", ("one", MIB))
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(image, ".")
    assert _push(tmp_path / "image.tar", registry).digest == digest


def test_after_one_change_only_what_changed_travels(proxy: Proxy, tmp_path: Path) -> None:
    first, _, _ = _image(tmp_path / "a", ("torch", 6 * MIB), ("kernels", 4 * MIB), ("tqdm 1", MIB))
    second, digest, layers = _image(tmp_path / "b", ("torch", 6 * MIB), ("kernels", 4 * MIB), ("tqdm 2", MIB))
    _push(first, proxy.port)
    before = proxy.sent
    moved = _push(second, proxy.port)
    config = json.loads(_files(second)[digest.removeprefix("sha256:")])["config"]["digest"]
    assert set(moved.travelled) == {layers[2].digest, config}
    assert layers[2].size < proxy.sent - before < layers[2].size + 64_000
    before = proxy.sent
    assert _push(second, proxy.port).travelled == ()
    assert proxy.sent - before < 8_000


def test_the_registry_itself_counts_what_a_changed_pin_costs(registry: int, tmp_path: Path) -> None:
    """Its storage grows by the changed layer, the configuration and the manifest, to the byte; it receives no more."""
    first, _, _ = _image(tmp_path / "a", ("torch", 6 * MIB), ("kernels", 4 * MIB), ("tqdm 1", MIB))
    second, digest, layers = _image(tmp_path / "b", ("torch", 6 * MIB), ("kernels", 4 * MIB), ("tqdm 2", MIB))
    _push(first, registry)
    before = _sizes(tmp_path / "registry")
    _push(second, registry)
    manifest = _files(second)[digest.removeprefix("sha256:")]
    changed = layers[2].size + json.loads(manifest)["config"]["size"] + len(manifest)
    assert sum(_sizes(tmp_path / "registry").values()) - sum(before.values()) == changed
    assert not list((tmp_path / "registry" / "data").rglob("_uploads/*/data"))


def _sizes(folder: Path) -> dict[str, int]:
    return {digest: path.stat().st_size for digest, path in stored(folder).items()}


def test_a_pull_fetches_only_what_is_not_there(registry: int, tmp_path: Path) -> None:
    first, _, _ = _image(tmp_path / "a", ("torch", 2 * MIB), ("tqdm 1", MIB))
    second, digest, layers = _image(tmp_path / "b", ("torch", 2 * MIB), ("tqdm 2", MIB))
    _push(second, registry)
    moved = pull(parse(f"127.0.0.1:{registry}/team/image@{digest}"), first, Silent())
    assert layers[1].digest in moved.travelled
    assert layers[0].digest not in moved.travelled


def test_a_push_that_broke_off_goes_on_where_it_ended(proxy: Proxy, tmp_path: Path, hardened: Recorder) -> None:
    image, digest, layers = _image(tmp_path / "a", ("torch", 8 * MIB))
    chunks = 0

    def breaks(data: bytes) -> bool:
        nonlocal chunks
        chunks += data.startswith(b"PATCH")
        return chunks > 6  # and all that follow: the network is gone

    proxy.breaks = breaks
    with pytest.raises(MachineError, match="no usable answer"):
        _push(image, proxy.port, chunk=MIB)
    proxy.breaks = lambda _data: False
    before = proxy.sent
    assert _push(image, proxy.port, chunk=MIB).digest == digest
    assert proxy.sent - before < layers[0].size - 4 * MIB
    assert pull(parse(f"127.0.0.1:{proxy.port}/team/image:v1"), tmp_path / "back", Silent()).digest == digest
    hardened("registries", "a push broken off within a layer")


def test_a_push_survives_a_break_in_the_middle_of_a_request(proxy: Proxy, tmp_path: Path, hardened: Recorder) -> None:
    image, digest, _ = _image(tmp_path / "a", ("torch", 4 * MIB))
    broken: list[int] = []

    def breaks(_data: bytes) -> bool:
        if proxy.sent > 2_500_000 and not broken:
            broken.append(proxy.sent)
            return True
        return False

    proxy.breaks = breaks
    assert _push(image, proxy.port, chunk=MIB).digest == digest
    assert broken
    assert pull(parse(f"127.0.0.1:{proxy.port}/team/image:v1"), tmp_path / "back", Silent()).digest == digest
    hardened("registries", "a connection lost in the middle of a request")


def test_blobs_of_another_repository_are_mounted(proxy: Proxy, tmp_path: Path) -> None:
    image, digest, layers = _image(tmp_path / "a", ("torch", 4 * MIB), ("tqdm", MIB))
    _push(image, proxy.port, "team/first:v1")
    before = proxy.sent
    moved = _push(image, proxy.port, "team/second:v1", mount_from="team/first")
    assert (moved.travelled, moved.mounted) == ((), len(layers) + 1)
    assert proxy.sent - before < 16_000
    assert pull(parse(f"127.0.0.1:{proxy.port}/team/second:v1"), tmp_path / "back", Silent()).digest == digest


def test_a_repository_without_the_blobs_mounts_nothing_and_all_travels(registry: int, tmp_path: Path) -> None:
    image, _, layers = _image(tmp_path / "a", ("torch", MIB))
    moved = _push(image, registry, mount_from="team/nothing")
    assert (len(moved.travelled), moved.mounted) == (len(layers) + 1, 0)


def test_a_damaged_blob_does_not_leave_the_machine(registry: int, tmp_path: Path, hardened: Recorder) -> None:
    image, _, layers = _image(tmp_path / "a", ("torch", MIB))
    path = image / "blobs" / "sha256" / layers[0].digest.removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="has digest"):
        _push(image, registry)
    with pytest.raises(MachineError, match="has no 'v1'"):
        pull(parse(f"127.0.0.1:{registry}/team/image:v1"), tmp_path / "back", Silent())
    hardened("registries", "a blob of the image to push has decayed", code=1)


@pytest.mark.parametrize("password", [_PASSWORD, "wrong-sesame", None])
def test_accounts(tmp_path: Path, password: str | None) -> None:
    image, digest, _ = _image(tmp_path / "a", ("one", MIB))
    with serving(tmp_path / "registry", _USERS) as port:
        if password is not None:
            auth = base64.b64encode(f"tester:{password}".encode()).decode()
            (tmp_path / "docker").mkdir()
            config = {"auths": {f"127.0.0.1:{port}": {"auth": auth}}}
            (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
        if password == _PASSWORD:
            assert _push(image, port).digest == digest
            return
        with pytest.raises(MachineError, match="docker login") as refused:
            _push(image, port)
        assert "sesame" not in str(refused.value)


_MEASURED = """
import resource, sys
from pathlib import Path
from stack_builder.progress import Silent
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import pull, push
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
push(Path(sys.argv[1]), parse(sys.argv[2]), Silent())
pull(parse(sys.argv[2]), Path(sys.argv[3]), Silent())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_follow_the_size_of_a_layer(registry: int, tmp_path: Path) -> None:
    image, _, _ = _image(tmp_path / "a", ("large", 96 * MIB))
    words = [image, f"127.0.0.1:{registry}/team/image:v1", tmp_path / "back"]
    done = subprocess.run([sys.executable, "-c", _MEASURED, *words], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 48_000  # kB; the layer has 98,304


def test_a_base_is_read_by_digest_from_the_same_registry(registry: int, tmp_path: Path) -> None:
    image, digest, layers = _image(tmp_path / "a", ("base", MIB))
    _push(image, registry)
    with RegistrySource.connect(f"127.0.0.1:{registry}/team/image") as source:
        assert b"".join(source.manifest(digest)) == _files(image)[digest.removeprefix("sha256:")]
        assert hashlib.sha256(b"".join(source.blob(layers[0].digest))).hexdigest() == layers[0].digest.removeprefix(
            "sha256:"
        )


_KILLED = """
import os, sys
from stack_builder.cli.app import run
from stack_builder.progress import _LineTask
seen = 0
def advance(self, amount):
    global seen
    seen += amount
    if seen > 3_000_000:
        os.kill(os.getpid(), 9)
_LineTask.advance = advance
run(sys.argv[1:])
"""


def test_a_pull_that_was_killed_is_taken_up_by_the_next(registry: int, tmp_path: Path, hardened: Recorder) -> None:
    image, digest, layers = _image(tmp_path / "a", ("torch", 8 * MIB))
    name = _push(image, registry).name
    words = ["pull", name, str(tmp_path / "back")]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *words], check=False, capture_output=True)
    assert killed.returncode == -9
    assert not (tmp_path / "back" / "index.json").exists()
    counting = Proxy(registry)
    try:
        again = f"127.0.0.1:{counting.port}/team/image@{digest}"
        pull(parse(again), tmp_path / "back", Silent())
        assert counting.received < layers[0].size - 2_000_000
        assert _files(tmp_path / "back") == _files(image)
    finally:
        counting.close()
    hardened("registries", "SIGKILL in the middle of a pull", bound="2 MB come again")


def test_the_commands_print_the_name_by_digest(
    registry: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, digest, _ = _image(tmp_path / "a", ("one", MIB))
    host = f"127.0.0.1:{registry}"
    assert run(["push", str(image), f"{host}/team/image:v1"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{host}/team/image@{digest}\n"
    assert "2 of 2 blobs sent" in said.err
    assert run(["pull", f"{host}/team/image:v1", str(tmp_path / "back")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{host}/team/image@{digest}\n"
    assert "all digests right" in said.err
    assert run(["pull", f"{host}/team/image:v2", str(tmp_path / "other")]) == 3
    assert "has no 'v2'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()

"""The pull, with an engine that is played by the test: what it asks for, and what happens when it cannot."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import socket
import struct
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stack_builder.errors import MachineError
from stack_builder.files import claimed_file
from stack_builder.image import ahead, daemon, oci
from stack_builder.image.oci import Image, ImageConfig
from stack_builder.image.store import BlobStore, layer_record
from stack_builder.image.stream import LayerStream, Written
from stack_builder.progress import Silent
from tests.forbidden import said_of_a_forbidden_socket


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


@pytest.fixture
def image(store: BlobStore) -> Image:
    def layer(data: bytes) -> Callable[[Any], Written]:
        def produce(sink: Any) -> Written:
            stream = LayerStream(sink)
            stream.plain(data)
            return stream.finish()

        return produce

    layers = tuple(layer_record(name, store.write(layer(name.encode() * 3000))) for name in ("base", "torch", "sglang"))
    return oci.assemble(store, ImageConfig("amd64", {}, ("sh",), {}), layers)


class Engine:
    """As much of a Docker client as the code under test uses; pulls as engines do, over HTTP."""

    def __init__(self, has: set[str], *, reaches: bool = True) -> None:
        self.has, self.reaches = has, reaches
        self.tags: list[tuple[str, str]] = []
        self.loaded: bytes | None = None
        self.removed: list[str] = []
        self.api = SimpleNamespace(pull=self.pull)
        self.left: list[Any] = []  # images that a build which was killed has left
        self.images = SimpleNamespace(
            get=lambda name: self,
            load=self.load,
            remove=lambda name, force=False: self.removed.append(name),
            list=lambda filters: self.left if filters == {"label": "dev.stackb.unfinished"} else [],
        )
        self.id = "sha256:engine"

    def tag(self, repository: str, name: str) -> None:
        self.tags.append((repository, name))

    def load(self, data: Iterator[bytes]) -> list[Engine]:
        self.loaded = b"".join(data)
        return [self]

    def pull(self, source: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        assert stream
        assert decode
        address, _, rest = source.partition("/")
        name, _, digest = rest.partition("@")
        if not self.reaches:
            yield {"error": "dial tcp 127.0.0.1: connect: connection refused"}
            return
        with httpx.Client(base_url=f"http://{address}/v2/{name}") as client:
            manifest = client.get(f"/manifests/{digest}").content
            assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == digest
            for each in json.loads(manifest)["layers"]:
                known = each["digest"] in self.has
                if not known:
                    data = client.get(f"/blobs/{each['digest']}").content
                    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == each["digest"]
                yield {"status": "Already exists" if known else "Pull complete", "id": each["digest"][7:19]}


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_only_what_the_engine_lacks_is_sent(store: BlobStore, image: Image) -> None:
    engine, notes = Engine({image.layers[0].digest, image.layers[1].digest}), Notes()
    assert daemon.send(engine, store, image, "name:tag", notes) == "sha256:engine"  # type: ignore[arg-type]
    assert notes.said == ["1 of 3 layers sent, the engine had the others"]
    assert engine.tags == [("name", "tag")]
    assert len(engine.removed) == 1  # the name under which it was pulled
    assert engine.loaded is None


def test_an_image_that_is_given_no_name_does_not_stay(store: BlobStore, image: Image) -> None:
    """Under the name of a registry that is gone nobody would look for it."""
    engine = Engine(set())

    def interrupted(repository: str, name: str) -> None:
        raise KeyboardInterrupt

    engine.tag = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        daemon.send(engine, store, image, "name:tag", Silent())  # type: ignore[arg-type]
    assert [name.rpartition("@")[2] for name in engine.removed] == [image.manifest_digest]


def test_an_engine_that_does_not_reach_us_gets_one_tar(store: BlobStore, image: Image) -> None:
    engine = Engine(set(), reaches=False)
    daemon.send(engine, store, image, "name:tag", Silent())  # type: ignore[arg-type]
    assert engine.loaded is not None
    with tarfile.open(fileobj=io.BytesIO(engine.loaded)) as archive:
        names = archive.getnames()
        listing = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        for digest in image.digests:
            member = archive.extractfile(f"blobs/sha256/{digest[7:]}")
            assert member is not None
            assert hashlib.sha256(member.read()).hexdigest() == digest[7:]
    assert {"oci-layout", "index.json", "manifest.json"} <= set(names)
    assert listing[0]["RepoTags"] == ["name:tag"]
    assert listing[0]["Layers"] == [f"blobs/sha256/{layer.digest[7:]}" for layer in image.layers]
    assert index["manifests"][0]["digest"] == image.manifest_digest


def test_an_engine_that_reached_us_and_failed_is_not_asked_again(store: BlobStore, image: Image) -> None:
    engine = Engine(set())

    def fails(source: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        httpx.get(f"http://{source.partition('/')[0]}/v2/")
        yield {"error": "write /var/lib/docker/tmp: no space left on device"}

    engine.api.pull = fails
    with pytest.raises(MachineError, match="no space left on device"):
        daemon.send(engine, store, image, "name:tag", Silent())  # type: ignore[arg-type]
    assert engine.loaded is None


def test_who_tries_tls_first_gets_a_full_answer(store: BlobStore, image: Image) -> None:
    """containerd does, and takes a closed connection for a dead registry."""
    with daemon.Registry(store, image) as registry:
        host, _, port = registry.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600) + b"\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_an_engine_that_hangs_up_is_no_news(store: BlobStore, image: Image, capfd: pytest.CaptureFixture[str]) -> None:
    """It does so when a build is interrupted, which has removed the manifest by then."""
    store.path(image.manifest_digest).unlink()
    with daemon.Registry(store, image) as registry:
        host, _, port = registry.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(f"GET /v2/stackb/image/manifests/{image.manifest_digest} HTTP/1.1\r\n\r\n".encode())
            assert client.recv(4096) == b""
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"GET /v2/ HT")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
        assert httpx.get(f"http://{registry.address}/v2/").status_code == 200
    assert capfd.readouterr() == ("", "")


def test_no_engine_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")

    def said() -> str:
        with pytest.raises(MachineError, match="no Docker engine answers") as caught:
            daemon.connect()
        return str(caught.value)

    with warnings.catch_warnings():  # docker-py forgets to close the socket that it could not connect
        warnings.simplefilter("ignore", ResourceWarning)
        line = said()
        gc.collect()
    assert "\n" not in line


def test_a_socket_that_the_user_may_not_use_is_called_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = said_of_a_forbidden_socket(daemon.connect, monkeypatch, tmp_path)
    assert "no permission on the Docker engine's socket" in said
    assert "group docker" in said


def until(holds: Callable[[], object]) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it never came")


def test_lower_layers_go_ahead_of_the_image(store: BlobStore, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_PATIENCE", 0.0)
    engine, notes = Engine(set()), Notes()
    pulled: list[str] = []

    def pull(source: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        before = set(engine.has)
        for event in engine.pull(source, stream=stream, decode=decode):
            engine.has |= {layer.digest for layer in image.layers if layer.digest[7:19] == event["id"]}
            yield event
        pulled.extend(layer.title for layer in image.layers if layer.digest in engine.has - before)

    engine.api.pull = pull
    with ahead.Ahead(engine, store, "amd64") as sending:  # type: ignore[arg-type]
        for count in (1, 2):
            sending.arrived(image.layers[:count])
            until(lambda count=count: len(pulled) == count)
        sent = sending.settle()
        daemon.send(engine, store, image, "name:tag", notes, sent)  # type: ignore[arg-type]
        unfinished = [name for name in engine.removed if image.manifest_digest not in name]
        assert unfinished == []  # as long as the whole is not there, they keep their layers in the engine
    assert pulled == ["base", "torch", "sglang"]
    assert notes.said == ["3 of 3 layers sent"]
    assert len(engine.removed) == 3  # two unfinished images, and the name under which the whole one came
    held = {path.name for path in (store.root / "blobs" / "sha256").iterdir()}
    assert held == {digest[7:] for digest in image.digests}


def test_unfinished_images_of_a_killed_build_are_removed_by_the_next(store: BlobStore) -> None:
    engine = Engine(set())
    store.partial.mkdir(parents=True)
    (store.partial / "ahead-left").touch()
    with claimed_file(store.partial, prefix="ahead-") as (claim, _):  # a build that goes on
        for name in (claim.name, "ahead-left", "ahead-gone", "../../.."):
            engine.left.append(SimpleNamespace(id=name, labels={"dev.stackb.unfinished": name}))
        with ahead.Ahead(engine, store, "amd64"):  # type: ignore[arg-type]
            until(lambda: len(engine.removed) >= 3)
    assert engine.removed == ["ahead-left", "ahead-gone", "../../.."]


def test_what_cannot_be_sent_ahead_is_left_to_the_image(
    store: BlobStore, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_PATIENCE", 0.0)
    engine = Engine(set(), reaches=False)
    asked: list[str] = []
    engine.api.pull = lambda source, **how: asked.append(source) or engine.pull(source, **how)
    with ahead.Ahead(engine, store, "amd64") as sending:  # type: ignore[arg-type]
        sending.arrived(image.layers[:1])
        until(lambda: asked)
        sending.arrived(image.layers[:2])
        sending.settle()
    assert len(asked) == 1
    assert {path.name for path in (store.root / "blobs" / "sha256").iterdir()} == {d[7:] for d in image.digests}


def test_a_failed_build_does_not_wait_for_what_is_under_way(
    store: BlobStore, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_PATIENCE", 0.0)
    engine = Engine(set())
    events: list[int] = []

    def endless(source: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        while True:
            events.append(1)
            yield {"status": "Extracting"}

    engine.api.pull = endless
    with pytest.raises(KeyboardInterrupt), ahead.Ahead(engine, store, "amd64") as sending:  # type: ignore[arg-type]
        sending.arrived(image.layers[:1])
        until(lambda: events)
        raise KeyboardInterrupt
    assert len(engine.removed) == 1

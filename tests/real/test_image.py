"""A small image of real CUDA 13 wheels on a real Debian base: reproducible, loadable, and it compiles a kernel.

The base leaves the compilers out to save a minute; everything else is as in the default stack.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from stack_builder.image import ahead, daemon, oci, output
from stack_builder.image.base.providers import by_engine
from stack_builder.image.build import Built, build
from stack_builder.image.layers import LayerWriter
from stack_builder.image.store import BlobStore, layer_record
from stack_builder.image.stream import Written
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.patchset.model import parse as parse_patch
from stack_builder.progress import Silent
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.receipt import LayerRecord, WheelRecord
from stack_builder.wheels.fetch import Network, fetch
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import indexes_of
from stack_builder.wheels.store import Store
from tests.real.conftest import keeps_blobs
from tests.unit.patch.conftest import HEAD

pytestmark = [pytest.mark.online, pytest.mark.timeout(900)]

NAMES = {"numpy", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}
SITE = "/opt/venv/lib/python3.11/site-packages"
NVRTC = """
import ctypes
from cuda.bindings import nvrtc
source = b'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
_, program = nvrtc.nvrtcCreateProgram(source, b"twice.cu", 0, [], [])
error, = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_120a"])
assert int(error) == 0, error
_, size = nvrtc.nvrtcGetCUBINSize(program)
cubin = bytearray(size)
nvrtc.nvrtcGetCUBIN(program, cubin)
print(nvrtc.nvrtcVersion()[1:], bytes(cubin[:4]), size > 1000)
"""


def demo_wheel(folder: Path, version: str) -> Path:
    info = f"demo-{version}.dist-info"
    files = {
        "demo.py": f"VERSION = {version!r}\nTABLE = {{10: [8]}}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for path, data in files.items()
    ]
    path = folder / f"demo-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": "".join([*rows, f"{info}/RECORD,,\n"]).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return path


def record(path: Path) -> WheelRecord:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WheelRecord("demo", path.name.split("-")[1], path.name, digest, path.stat().st_size, "default")


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@dataclass(frozen=True)
class Small:
    root: Path
    cache: Path
    subject: Subject
    wheels: dict[str, Path]
    options: Options
    built: Built

    @property
    def space(self) -> Workspace:
        return Workspace(self.cache)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_recipe: Path, small_cache: Path) -> Small:
    root = tmp_path_factory.mktemp("image")
    folder = stack_file.find("cu130-sglang-0.5.23")
    spec, lock = stack_file.load(folder), lock_file.load(folder)
    lock = replace(lock, artifacts=tuple(each for each in lock.artifacts if each.name in NAMES))
    with Http() as http:
        fetched = fetch(
            lock, Store(root / "wheels"), network=lambda: Network(http, indexes_of(spec, http)), progress=Silent()
        )
    wheels = {each.artifact.filename: each.path for each in fetched}
    demo = demo_wheel(root, "1.0")
    subject = Subject.of_stack(spec, lock, "sm_120")
    subject = replace(subject, wheels=tuple(sorted((*subject.wheels, record(demo)), key=lambda each: each.name)))
    wheels[demo.name] = demo
    options = Options(base=f"recipe:{small_recipe}", jobs=2)
    built = build(subject, wheels, options, Workspace(small_cache), Silent())
    return Small(root, small_cache, subject, wheels, options, built)


AGAIN = """
import json, os, sys
from pathlib import Path
os.umask(0o077)
from stack_builder.image.build import build
from stack_builder.image.wheel_layers import Options
from stack_builder.image.subject import Subject
from stack_builder.image.workspace import Workspace
from stack_builder.patchset.model import parse as parse_patch
from stack_builder.progress import Silent
from stack_builder.stack import receipt

def main():
    paper = receipt.load(Path(sys.argv[1]))
    wheels = {path.name: path for path in map(Path, json.loads(sys.argv[3]))}
    options = Options(base=paper.base.source, base_packages=paper.base.packages, jobs=1)
    built = build(Subject.of_receipt(paper), wheels, options, Workspace(Path(sys.argv[2])), Silent())
    print(built.image.manifest_digest)

if __name__ == "__main__":
    main()
"""


def test_folder_umask_zone_locale_and_number_of_cores_do_not_show(small: Small, tmp_path: Path) -> None:
    output.write(small.built, output.parse(str(tmp_path / "out")), small.space.blobs, Silent())
    again = tmp_path / "elsewhere" / "cache"
    again.mkdir(parents=True)
    shutil.copytree(small.cache / "debs", again / "debs")  # not to fetch them twice
    (tmp_path / "script.py").write_text(AGAIN)
    paths = json.dumps([str(path) for path in small.wheels.values()])
    argv = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out" / output.RECEIPT), str(again), paths]
    environment = {**os.environ, "TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "99", "USER": "somebody"}
    done = subprocess.run(argv, cwd="/", env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == small.built.image.manifest_digest


def test_bytecode_is_of_the_kind_that_is_never_checked(small: Small, tmp_path: Path) -> None:
    layer = next(each for each in small.built.receipt.layers if "demo 1.0" in each.holds)
    blob = small.space.blobs.path(layer.digest)
    pyc = f"{SITE.lstrip('/')}/__pycache__/demo.cpython-311.pyc"
    data = subprocess.run(["tar", "-xzOf", blob, pyc], stdout=subprocess.PIPE, check=True).stdout
    assert int.from_bytes(data[4:8], "little") == 1  # PEP 552: hash-based, unchecked
    assert data[8:16] == importlib.util.source_hash(b"VERSION = '1.0'\nTABLE = {10: [8]}\n")
    if sys.version_info[:2] == (3, 11):
        assert data[:4] == importlib.util.MAGIC_NUMBER
        assert marshal.loads(data[16:]).co_filename == f"{SITE}/demo.py"


def test_one_pin_changed_moves_one_layer(small: Small) -> None:
    newer = demo_wheel(small.root, "1.1")
    subject = replace(
        small.subject,
        wheels=tuple(record(newer) if each.name == "demo" else each for each in small.subject.wheels),
    )
    built = build(subject, {**small.wheels, newer.name: newer}, small.options, small.space, Silent())
    before = [layer.digest for layer in small.built.receipt.layers]
    after = [layer.digest for layer in built.receipt.layers]
    moved = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert [sorted(set(built.receipt.layers[n].holds) - set(small.built.receipt.layers[n].holds)) for n in moved] == [
        ["demo 1.1"]
    ]


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_agrees(small: Small, tmp_path: Path) -> None:
    for name in ("layout", "image.tar"):
        output.write(small.built, output.parse(str(tmp_path / name)), small.space.blobs, Silent())
        kind = "oci-archive" if name.endswith("tar") else "oci"
        said = json.loads(
            subprocess.run(
                ["skopeo", "inspect", f"{kind}:{tmp_path / name}"], stdout=subprocess.PIPE, check=True
            ).stdout
        )
        assert said["Digest"] == small.built.image.manifest_digest
        assert said["Layers"] == [layer.digest for layer in small.built.receipt.layers]
        assert said["Architecture"] == "amd64"


@pytest.fixture(scope="module")
def loaded(small: Small) -> Iterator[str]:
    tag = f"stackb-test:{os.getpid()}"
    client = daemon.connect()
    identity = daemon.send(client, small.space.blobs, small.built.image, tag, Silent())
    image = small.built.image
    assert identity == (image.manifest_digest if keeps_blobs(client) else image.config_digest)
    yield tag
    client.images.remove(tag, force=True)


def in_container(tag: str, *argv: str) -> str:
    client = daemon.connect()
    return bytes(client.containers.run(tag, list(argv), network_mode="none", remove=True)).decode()


@pytest.mark.docker
def test_nvrtc_compiles_a_kernel_in_the_container(loaded: str) -> None:
    assert in_container(loaded, "python", "-c", NVRTC).strip() == r"(13, 0) b'\x7fELF' True"


@pytest.mark.docker
def test_the_containers_own_ldconfig_gives_the_same_cache(loaded: str) -> None:
    script = "cp /etc/ld.so.cache /before && /sbin/ldconfig && cmp /before /etc/ld.so.cache && echo same"
    assert in_container(loaded, "sh", "-c", script).strip() == "same"


@pytest.mark.docker
def test_the_engine_fetches_only_what_it_lacks(small: Small, loaded: str) -> None:
    newer = demo_wheel(small.root, "1.2")
    wheels = tuple(record(newer) if each.name == "demo" else each for each in small.subject.wheels)
    subject = replace(small.subject, wheels=wheels)
    built = build(subject, {**small.wheels, newer.name: newer}, small.options, small.space, Silent())
    notes = Notes()
    tag = f"{loaded}-changed"
    client = daemon.connect()
    daemon.send(client, small.space.blobs, built.image, tag, notes)
    try:
        before, after = ([layer.digest for layer in each.image.layers] for each in (small.built, built))
        below = next(number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        # a classic store keeps layers unpacked on top of each other, no blobs: it wants the changed one and all above
        wanted = 1 if keeps_blobs(client) else len(after) - below
        assert notes.said == [f"{wanted} of {len(after)} layers sent, the engine had the others"]
        assert below > 0
        assert in_container(tag, "python", "-c", "import demo; print(demo.VERSION)").strip() == "1.2"
    finally:
        client.images.remove(tag, force=True)


PATCH = f"""\
id = "a-table"
{HEAD}
[[operation]]
op = "ensure-dict-key"
file = "demo.py"
dict = "TABLE"
key = 12
copy_from = 10
"""


@pytest.mark.docker
def test_a_patched_module_runs_patched(small: Small, loaded: str) -> None:
    """The bytecode of the module as it was lies in a layer below and is never checked against its source."""
    demo = next(each for each in small.subject.wheels if each.name == "demo")
    subject = replace(small.subject, wheels=(demo,), patches=(parse_patch(PATCH, "test"),))
    built = build(subject, small.wheels, small.options, small.space, Silent())
    client = daemon.connect()
    daemon.send(client, small.space.blobs, built.image, f"{loaded}-patched", Silent())
    try:
        said = in_container(f"{loaded}-patched", "python", "-c", "import demo; print(demo.TABLE, demo.__cached__)")
        assert said.strip() == f"{{10: [8], 12: [8]}} {SITE}/__pycache__/demo.cpython-311.pyc"
    finally:
        client.images.remove(f"{loaded}-patched", force=True)


@pytest.mark.docker
def test_the_docker_engine_makes_a_base_from_the_dockerfile(small: Small, loaded: str, tmp_path: Path) -> None:
    """A base of a registry stands in as one made here: ours, which says that it lacks no package."""
    client = daemon.connect()
    tag = f"{loaded}-base"
    recipe = (
        f"FROM {loaded}\nRUN printf '#!/bin/sh\\n' > /usr/local/bin/dpkg-query && chmod +x /usr/local/bin/dpkg-query\n"
    )
    (tmp_path / "Dockerfile").write_text(recipe)
    client.images.build(path=str(tmp_path), tag=tag, rm=True)
    try:
        demo = next(each for each in small.subject.wheels if each.name == "demo")
        subject = replace(small.subject, wheels=(demo,))
        options = Options(base=by_engine(f"docker:{tag}"), jobs=2)
        built = build(subject, small.wheels, options, small.space, Silent())
        assert built.receipt.base.source == f"dockerfile:{tag}"
        daemon.send(client, small.space.blobs, built.image, f"{tag}-on-top", Silent())
        said = in_container(f"{tag}-on-top", "python", "-c", "import demo; print(demo.VERSION, demo.__cached__)")
        assert said.split() == ["1.0", f"{SITE}/__pycache__/demo.cpython-311.pyc"]
    finally:
        for name in (f"{tag}-on-top", tag):
            client.images.remove(name, force=True)


@pytest.mark.docker
def test_layers_are_in_the_engine_before_their_image_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on where it ended, and keeps nothing of the images on the way."""
    monkeypatch.setattr(ahead, "_PATIENCE", 0.0)
    store, client = BlobStore(tmp_path), daemon.connect()

    def layer(number: int) -> LayerRecord:
        def produce(sink: BinaryIO) -> Written:
            writer = LayerWriter(sink)
            writer.bytes(f"file{number}", os.urandom(1 << 16))
            return writer.finish()

        return layer_record(f"layer {number}", store.write(produce))

    layers = tuple(layer(number) for number in range(3))
    image = oci.assemble(store, oci.ImageConfig("amd64", {}, ("/file0",), {}), layers)
    before = {each.id for each in client.images.list(all=True)}
    tag, notes = f"stackb-test-ahead:{os.getpid()}", Notes()
    with ahead.Ahead(client, store, "amd64") as sending:
        sending.arrived(layers[:2])
        for _ in range(600):
            if {each.id for each in client.images.list(all=True)} - before:
                break
            time.sleep(0.1)
        sending.settle()
        identity = daemon.send(client, store, image, tag, notes)
    try:
        assert notes.said == ["1 of 3 layers sent, the engine had the others"]
        assert {each.id for each in client.images.list(all=True)} - before == {identity}
        assert client.images.get(tag).attrs["RootFS"]["Layers"] == [each.diff_id for each in layers]
    finally:
        client.images.remove(tag, force=True)

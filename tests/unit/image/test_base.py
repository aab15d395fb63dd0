"""Bases: images by digest, hostile ones, and the pinning of Debian packages."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.image.base import debian, packages, recipe
from stack_builder.image.base.images import LayoutProvider, RegistryProvider
from stack_builder.image.base.model import BaseRequest
from stack_builder.image.base.providers import choose
from stack_builder.image.base.unpack import apply_layer
from stack_builder.image.daemon import Registry
from stack_builder.image.oci import Image
from stack_builder.image.store import BlobStore
from stack_builder.progress import Silent
from stack_builder.stack.receipt import DebianPackage, LayerRecord

PYTHON = {"usr/bin/python3.11": b"#!/bin/sh\n"}


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[[str], BaseRequest]:
    def make(name: str) -> BaseRequest:
        return BaseRequest(name, "linux_x86_64", "3.11", BlobStore(tmp_path / "oci"), tmp_path / "cache", Silent())

    return make


RequestFor = Callable[[str], BaseRequest]


def test_layers_keep_the_digests_that_others_know(
    request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path
) -> None:
    one, two = kit.tar_bytes(PYTHON), kit.tar_bytes({"usr/lib/x": b"x"})
    digest = kit.write_oci_layout(tmp_path / "base", [one, two])
    base = LayoutProvider().provide(request_for(str(tmp_path / "base")))
    assert base.record.identity == digest
    assert [layer.digest for layer in base.layers] == [
        f"sha256:{hashlib.sha256(gzip.compress(each, mtime=0)).hexdigest()}" for each in (one, two)
    ]
    assert [layer.diff_id for layer in base.layers] == [
        f"sha256:{hashlib.sha256(each).hexdigest()}" for each in (one, two)
    ]
    assert base.environment["FROM_BASE"] == "yes"
    assert base.rootfs is not None
    assert (base.rootfs.path / "usr/lib/x").read_bytes() == b"x"


def test_a_tar_of_the_layout_and_uncompressed_layers_do_as_well(
    request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path
) -> None:
    layer = kit.tar_bytes(PYTHON)
    kit.write_oci_layout(tmp_path / "base", [layer], compress=False)
    with tarfile.open(tmp_path / "base.tar", "w") as archive:
        archive.add(tmp_path / "base", ".")
    base = LayoutProvider().provide(request_for(str(tmp_path / "base.tar")))
    assert base.layers[0].diff_id == f"sha256:{hashlib.sha256(layer).hexdigest()}"
    blob = BlobStore(tmp_path / "oci").path(base.layers[0].digest).read_bytes()
    assert gzip.decompress(blob) == layer


def saved_by_an_old_engine(path: Path, layers: Sequence[bytes]) -> None:
    """As ``docker save`` of 20.10 writes it: a folder for each layer, and a link where an image repeats one."""
    config = {"architecture": "amd64", "config": {}, "rootfs": {"diff_ids": []}}
    config["rootfs"] = {"diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]}
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        names = []
        for number, layer in enumerate(layers):
            names.append(f"{number}/layer.tar")
            if layer in layers[:number]:
                link = tarfile.TarInfo(names[-1])
                link.type, link.linkname = tarfile.SYMTYPE, f"../{list(layers).index(layer)}/layer.tar"
                archive.addfile(link)
            else:
                add(names[-1], layer)
        add("config.json", json.dumps(config).encode())
        add("manifest.json", json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode())


def test_what_docker_save_wrote_is_a_base(request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path) -> None:
    one, two = kit.tar_bytes(PYTHON), kit.tar_bytes({"x": b"x"})
    saved_by_an_old_engine(tmp_path / "saved.tar", [one, two, one])
    base = LayoutProvider().provide(request_for(str(tmp_path / "saved.tar")))
    assert [layer.diff_id for layer in base.layers] == [
        f"sha256:{hashlib.sha256(each).hexdigest()}" for each in (one, two, one)
    ]


@pytest.fixture
def registry(kit: SimpleNamespace, tmp_path: Path) -> Registry:
    digest = kit.write_oci_layout(tmp_path / "served", [kit.tar_bytes(PYTHON)])
    store = BlobStore(tmp_path / "served")
    manifest = json.loads(store.path(digest).read_bytes())
    layers = tuple(LayerRecord("", each["digest"], "", each["size"], "") for each in manifest["layers"])
    return Registry(store, Image(digest, manifest["config"]["digest"], 0, "amd64", layers))


def test_a_registry_is_read_by_digest(
    registry: Registry, request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path
) -> None:
    digest = json.loads((tmp_path / "served/index.json").read_bytes())["manifests"][0]["digest"]
    with registry:
        base = RegistryProvider().provide(request_for(f"{registry.address}/stackb/image@{digest}"))
        with pytest.raises(MachineError, match="answers 404"):
            RegistryProvider().provide(request_for(f"{registry.address}/stackb/image@sha256:{'0' * 64}"))
    assert base.record.identity == digest
    with pytest.raises(MachineError, match="does not answer"):
        RegistryProvider().provide(request_for(f"{registry.address}/stackb/image@{digest}"))


@pytest.mark.parametrize("name", ["host.example/name:tag", "host.example/name", f"name@sha256:{'0' * 64}"])
def test_a_registry_base_needs_host_and_digest(name: str, request_for: RequestFor) -> None:
    with pytest.raises(UsageError, match="names no"):
        RegistryProvider().provide(request_for(name))


def test_our_registry_shows_one_image_and_nothing_else(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with registry, httpx.Client(base_url=f"http://{registry.address}") as client:
        assert client.get("/v2/").status_code == 200
        blob = next(iter(registry.sizes))
        full = next(path.name for path in (tmp_path / "served/blobs/sha256").iterdir() if path.name.startswith(blob))
        answer = client.get(f"/v2/stackb/image/blobs/sha256:{full}")
        assert hashlib.sha256(answer.content).hexdigest() == full
        assert client.head(f"/v2/stackb/image/blobs/sha256:{full}").headers["Docker-Content-Digest"] == f"sha256:{full}"
        for path in ("/v2/other/blobs/sha256:" + full, "/v2/stackb/image/blobs/../../../secret", "/", "/v2/_catalog"):
            assert client.get(path).status_code == 404


@pytest.mark.parametrize("what", ["layer", "config", "manifest"])
def test_bytes_that_are_not_their_digest_are_refused(
    what: str, request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path
) -> None:
    digest = kit.write_oci_layout(tmp_path / "base", [kit.tar_bytes(PYTHON)])
    store = BlobStore(tmp_path / "base")
    manifest = json.loads(store.path(digest).read_bytes())
    victim = {
        "layer": manifest["layers"][0]["digest"],
        "config": manifest["config"]["digest"],
        "manifest": digest,
    }[what]
    data = store.path(victim).read_bytes()
    store.path(victim).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="do not have this digest") as caught:
        LayoutProvider().provide(request_for(str(tmp_path / "base")))
    assert victim in str(caught.value)
    assert not list((tmp_path / "oci").rglob("blobs/sha256/*"))


def test_another_platform_is_refused(request_for: RequestFor, kit: SimpleNamespace, tmp_path: Path) -> None:
    kit.write_oci_layout(tmp_path / "base", [kit.tar_bytes(PYTHON)], architecture="arm64")
    with pytest.raises(UsageError, match="is for arm64, not amd64"):
        LayoutProvider().provide(request_for(str(tmp_path / "base")))


@pytest.mark.parametrize("text", ["{", "[]", '{"manifests": []}', '{"manifests": [{"digest": "../../etc/passwd"}]}'])
def test_an_index_that_makes_no_sense_is_refused(text: str, request_for: RequestFor, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/index.json").write_text(text)
    with pytest.raises((IntegrityError, UsageError)):
        LayoutProvider().provide(request_for(str(tmp_path / "base")))


@pytest.mark.parametrize(
    "build",
    [
        lambda tar: tar({"../outside": b"x"}),
        lambda tar: tar({"a/../../outside": b"x"}),
        lambda tar: tar({"door/outside": b"x"}, {"door": ".."}),
        lambda tar: tar({"door/outside": b"x"}, {"door": "/tmp"}),
    ],
    ids=["dots", "inner dots", "relative link", "absolute link"],
)
def test_a_layer_writes_nothing_outside(
    build: Callable[[Callable[..., bytes]], bytes], kit: SimpleNamespace, tmp_path: Path
) -> None:
    def tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, target in (links or {}).items():  # the link first
                member = tarfile.TarInfo(name)
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return out.getvalue()

    (tmp_path / "layer").write_bytes(gzip.compress(build(tar)))
    tree = tmp_path / "deep" / "tree"
    tree.mkdir(parents=True)
    with pytest.raises(IntegrityError, match="leads out of the image"):
        apply_layer(tmp_path / "layer", tree)
    assert not list(tmp_path.rglob("outside"))


def test_whiteouts_remove_what_lies_below(kit: SimpleNamespace, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number, files in enumerate(
        (
            {"keep": b"1", "gone": b"2", "folder/old": b"3", "other/old": b"4"},
            {".wh.gone": b"", "folder/.wh..wh..opq": b"", "folder/new": b"5", ".wh.other": b""},
        )
    ):
        (tmp_path / str(number)).write_bytes(gzip.compress(kit.tar_bytes(files)))
        apply_layer(tmp_path / str(number), tree)
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == ["folder", "folder/new", "keep"]


@pytest.mark.parametrize("text", ["", "recipe:", "nowhere:x", "debian-bookworm"])
def test_a_base_of_no_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no base"):
        choose(text)


# --- Debian ----------------------------------------------------------------------------------------------------


def package(name: str, version: str = "1") -> DebianPackage:
    return DebianPackage(name, version, "amd64", hashlib.sha256(name.encode()).hexdigest(), 4, f"pool/{name}.deb")


@pytest.fixture
def debian_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A recipe with a lock of two packages, a mirror that has what ``has`` says, and no mmdebstrap."""
    path = tmp_path / "small.toml"
    path.write_text('suite = "bookworm"\npython = "3.11"\nglibc = "2.36"\npackages = ["python3"]\n')
    _, found = recipe.find(str(path))
    lock = recipe.BaseLock(found.sha256, "amd64", (package("libc6"), package("python3")))
    recipe.save_lock(recipe.lock_path(path, "amd64"), lock)
    state = SimpleNamespace(path=path, lock=lock, has={"libc6", "python3"}, resolved=0)

    def fetch(wanted: Sequence[DebianPackage], store: Path, progress: object) -> list[DebianPackage]:
        store.mkdir(parents=True, exist_ok=True)
        for each in wanted:
            if each.name in state.has:
                packages.location(store, each).write_bytes(each.name.encode())
        return [each for each in wanted if each.name not in state.has]

    def resolve(asked: recipe.Recipe, architecture: str, root: Path) -> recipe.BaseLock:
        state.resolved += 1
        return recipe.BaseLock(asked.sha256, architecture, (package("libc6"), package("python3.11", "2")))

    class Stop(Exception):  # noqa: N818 - reached the point where packages would be installed
        pass

    def make(self: object, name: str, asked: object, chosen: recipe.BaseLock, folder: object, wanted: object) -> None:
        state.installed = chosen
        raise Stop

    monkeypatch.setattr(packages, "fetch", fetch)
    monkeypatch.setattr(packages, "resolve", resolve)
    monkeypatch.setattr(debian.DebianProvider, "_make", make)
    state.stop = Stop
    return state


def provide(state: SimpleNamespace, request: BaseRequest, **changes: object) -> None:
    with pytest.raises(state.stop):
        debian.DebianProvider().provide(replace(request, name=str(state.path), **changes))  # type: ignore[arg-type]


def test_the_locked_packages_are_installed(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    provide(debian_base, request_for(""))
    assert (debian_base.installed, debian_base.resolved) == (debian_base.lock, 0)


def test_packages_gone_from_the_mirror_are_pinned_anew(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    debian_base.has = {"libc6", "python3.11"}
    notes: list[str] = []

    class Listening(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    provide(debian_base, request_for(""), progress=Listening())
    assert [each.name for each in debian_base.installed.packages] == ["libc6", "python3.11"]
    assert "python3 1 is gone from the mirror (1 of 2); its packages were pinned anew" in notes[0]
    assert recipe.load_lock(recipe.lock_path(debian_base.path, "amd64")) == debian_base.lock  # the file stays


def test_locked_refuses_instead(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    debian_base.has = {"libc6", "python3.11"}
    request = replace(request_for(str(debian_base.path)), locked=True)
    with pytest.raises(IntegrityError, match="python3 1 is gone from the mirror"):
        debian.DebianProvider().provide(request)
    assert debian_base.resolved == 0


def test_an_edited_recipe_is_noticed(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    debian_base.has |= {"python3.11"}
    text = debian_base.path.read_text()
    debian_base.path.write_text(text.replace('["python3"]', '["python3", "gcc"]'))
    with pytest.raises(IntegrityError, match="changed since it was locked"):
        debian.DebianProvider().provide(replace(request_for(str(debian_base.path)), locked=True))
    provide(debian_base, request_for(""))
    assert debian_base.resolved == 1


def test_update_writes_the_lock(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    debian_base.has |= {"python3.11"}
    provide(debian_base, request_for(""), update=True)
    assert recipe.load_lock(recipe.lock_path(debian_base.path, "amd64")) == debian_base.installed


def test_a_receipts_packages_or_none(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    provide(debian_base, request_for(""), packages=(package("libc6"),))
    assert [each.name for each in debian_base.installed.packages] == ["libc6"]
    request = replace(request_for(str(debian_base.path)), packages=(package("vanished"),))
    with pytest.raises(IntegrityError, match="vanished 1 is gone"):
        debian.DebianProvider().provide(request)


def test_offline_names_what_is_missing(debian_base: SimpleNamespace, request_for: RequestFor) -> None:
    request = replace(request_for(str(debian_base.path)), offline=True)
    with pytest.raises(MachineError, match="2 packages of the base are not in the cache"):
        debian.DebianProvider().provide(request)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mirror"
    (folder / "pool").mkdir(parents=True)
    (folder / "pool/libc6.deb").write_bytes(b"libc6")
    monkeypatch.setenv("STACKB_DEBIAN_MIRROR", f"file:{folder}")
    return folder


@pytest.mark.skipif(not Path("/usr/lib/apt/apt-helper").exists(), reason="apt is not installed")
def test_apt_fetches_by_hash_and_tells_what_is_gone(mirror: Path, tmp_path: Path) -> None:
    (mirror / "pool/forged.deb").write_bytes(b"other bytes")
    wanted = [package("libc6"), package("vanished")]
    assert packages.fetch(wanted, tmp_path / "debs", Silent()) == [wanted[1]]
    assert packages.location(tmp_path / "debs", wanted[0]).read_bytes() == b"libc6"
    with pytest.raises(MachineError, match=r"(?i)hash"):
        packages.fetch([package("forged")], tmp_path / "debs", Silent())
    assert [path.name for path in (tmp_path / "debs").iterdir()] == [f"{wanted[0].sha256}.deb"]


@pytest.mark.skipif(not Path("/usr/lib/apt/apt-helper").exists(), reason="apt is not installed")
def test_a_mirror_that_does_not_answer_is_not_one_that_lacks_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACKB_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")  # the discard port: nobody listens
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(MachineError, match="a Debian mirror does not answer"):
        packages.fetch([package("libc6")], tmp_path / "debs", Silent())


@pytest.mark.parametrize(
    "text", ["", 'suite = "bookworm"', 'suite = "../x"\npython="3.11"\nglibc="2.36"\npackages=[]', "not toml", "x = 1"]
)
def test_a_malformed_recipe_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        recipe.find(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 2}'])
def test_a_malformed_base_lock_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(UsageError, match="not a base lock"):
        recipe.load_lock(tmp_path / "lock")


def test_the_shipped_lock_is_of_the_shipped_recipe() -> None:
    path, found = recipe.find("debian-bookworm")
    lock = recipe.load_lock(recipe.lock_path(path, "amd64"))
    assert lock is not None
    assert lock.recipe_sha256 == found.sha256
    assert {"libc6", "python3.11", "gcc", "libnuma1", "libstdc++6"} <= {each.name for each in lock.packages}
    assert all(each.architecture in ("amd64", "all") for each in lock.packages)
    assert all("://" not in each.path for each in lock.packages)

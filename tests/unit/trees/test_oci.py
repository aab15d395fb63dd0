"""Images as file systems. tests/real/test_trees_docker.py asks Docker about the same layers."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.trees import tars
from stack_builder.trees.oci import OciTree
from tests.unit.trees.oci_images import LAYERS, Row, layer_tar, write_layout, write_tar

EXPECTED = {  # what the layer specification makes of LAYERS
    "/usr/lib/libc.so.6": b"second libc, longer",
    "/usr/lib/again.so": b"first libc",  # a hard link keeps the content that its layer gave it
    "/usr/lib/libx.so": b"no link any more",
    "/opt/cleared/new": b"new",
    "/opt/turned/inside": b"inside",
    "/opt/gone2": b"!",
    "/opt/dotted": b".",
    "/lib": None,
}


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return write_layout(tmp_path / "layout", [layer_tar(rows) for rows in LAYERS])


def contents(tree: OciTree) -> dict[str, bytes | None]:
    return {e.path: None if e.link is not None else tree.prefix(e.path, 1 << 20) for e in tree.entries()}


@pytest.mark.parametrize("form", ["gzip", "raw", "tar", "docker save"])
def test_layers_lie_over_each_other(tmp_path: Path, layout: Path, form: str) -> None:
    path = layout
    if form == "raw":
        path = write_layout(tmp_path / "raw", [layer_tar(rows) for rows in LAYERS], pack="raw")
    elif form == "tar":
        path = write_tar(layout, tmp_path / "image.tar", "manifest.json")
    elif form == "docker save":
        path = write_tar(layout, tmp_path / "image.tar", "index.json")
    with OciTree(path) as tree:
        assert contents(tree) == EXPECTED
        assert tree.resolve("/lib/libx.so") == "/usr/lib/libx.so"
        assert tree.environ["LD_LIBRARY_PATH"] == "/opt/a:/opt/b"
        with pytest.raises(FileNotFoundError), tree.open("/opt/file"):
            pass


def test_a_second_look_decompresses_nothing(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OciTree(layout):
        pass
    monkeypatch.setattr(tars, "decompressed", None)
    with OciTree(layout) as tree:
        assert contents(tree) == EXPECTED


def test_a_layer_of_several_gzip_members(tmp_path: Path) -> None:
    """As `stackb build` writes them: the wheel's own deflate streams, one member each."""
    tar = layer_tar(LAYERS[0])
    layout = write_layout(tmp_path / "members", [tar], pack="raw")
    [row] = json.loads((layout / "manifest.json").read_text())
    plain = layout / row["Layers"][0]
    packed = gzip.compress(tar[:600], mtime=0) + gzip.compress(tar[600:], mtime=0)
    (layout / "manifest.json").write_text(json.dumps([{**row, "Layers": ["layer.tar.gz"]}]))
    plain.unlink()
    (layout / "layer.tar.gz").write_bytes(packed)
    (layout / "index.json").unlink()
    with OciTree(layout) as tree:
        assert tree.prefix("/opt/file", 9) == b"file"


def test_another_content_under_a_digest_is_refused(layout: Path, private_cache: Path) -> None:
    manifest = json.loads((layout / "manifest.json").read_text())
    path = layout / manifest[0]["Layers"][1]
    path.write_bytes(gzip.compress(layer_tar([("evil", b"evil")])))
    with pytest.raises(IntegrityError, match="digest is"):
        OciTree(layout)
    kept = [p for p in private_cache.rglob("*") if p.is_file()]
    assert len(kept) <= 2  # of the layers that are what their digests say
    assert not any(b"evil" in p.read_bytes() for p in kept)


@pytest.mark.parametrize("cut", [10, 40, 300])
def test_a_cut_layer_is_refused(tmp_path: Path, layout: Path, cut: int) -> None:
    manifest = json.loads((layout / "manifest.json").read_text())
    path = layout / manifest[0]["Layers"][0]
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(IntegrityError):
        OciTree(layout)


@pytest.mark.parametrize("path", ["../out", "a/../../out", "a/.."])
def test_paths_cannot_leave_the_root(tmp_path: Path, path: str) -> None:
    rows: list[Row] = [(path, b"x")]
    with pytest.raises(IntegrityError, match="holds the path"):
        OciTree(write_layout(tmp_path / "evil", [layer_tar(rows)]))


def test_links_cannot_leave_the_root(tmp_path: Path) -> None:
    rows: list[Row] = [("etc/shadow", "../../../../../../etc/passwd"), ("abs", "/etc/passwd"), ("hard", "=etc/nothing")]
    with OciTree(write_layout(tmp_path / "evil", [layer_tar(rows)])) as tree:
        assert tree.resolve("/etc/shadow") is None
        assert tree.resolve("/abs") is None
        with pytest.raises(IntegrityError), tree.open("/hard"):
            pass


def test_the_machine_chooses(layout: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no image for arm64"):
        OciTree(layout, machine="aarch64")
    arm = write_layout(tmp_path / "arm", [layer_tar([("arm", b"")])], machine="arm64")
    index = json.loads((layout / "index.json").read_text())
    index["manifests"] += json.loads((arm / "index.json").read_text())["manifests"]
    (layout / "index.json").write_text(json.dumps(index))
    for blob in (arm / "blobs/sha256").iterdir():
        (layout / "blobs/sha256" / blob.name).write_bytes(blob.read_bytes())
    with OciTree(layout, machine="aarch64") as tree:
        assert [e.path for e in tree.entries()] == ["/arm"]
    with OciTree(layout) as tree:
        assert contents(tree) == EXPECTED


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"neither index\.json"):
        OciTree(tmp_path)
    (tmp_path / "x.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(IntegrityError, match="not a readable tar"):
        OciTree(tmp_path / "x.tar")
    with tarfile.open(tmp_path / "z.tar.gz", "w:gz"):
        pass
    with pytest.raises(IntegrityError, match="not a readable tar"):
        OciTree(tmp_path / "z.tar.gz")

"""``docker save`` read as it comes: the same tree as from the file, in every form that engines write."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.trees.members import MemberCache
from stack_builder.trees.oci import OciTree
from stack_builder.trees.packs import WHOLE
from stack_builder.trees.saved import SavedImage
from tests.unit.trees.oci_images import LAYERS, layer_tar, write_layout, write_tar
from tests.unit.trees.test_oci import EXPECTED, contents

LARGE = b"no object, and more than a pack keeps".ljust(WHOLE + 1, b".")


class Engine:
    """Writes a tar in odd pieces, and counts how often."""

    def __init__(self, tar: bytes) -> None:
        self.tar = tar
        self.saves = 0

    @contextmanager
    def save(self) -> Iterator[Iterator[bytes]]:
        self.saves += 1
        yield (self.tar[at : at + 777] for at in range(0, len(self.tar), 777))


def opened(engine: Engine, cache: Path) -> OciTree:
    members = MemberCache(cache)
    return OciTree(SavedImage(engine.save, "x86_64", "image:x", members), cache=members)


def old_engine(layers: list[bytes], *, repeat: bool = False) -> bytes:
    """What engine 20.10 writes: layers in folders, documents between them, the manifest last."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        names = []
        for number, layer in enumerate(layers):
            add(f"{number}/VERSION", b"1.0")
            add(f"{number}/json", b'{"id": "x"}')
            add(f"{number}/layer.tar", layer)
            names.append(f"{number}/layer.tar")
        if repeat:
            link = tarfile.TarInfo("again/layer.tar")
            link.type, link.linkname = tarfile.SYMTYPE, f"../{len(layers) - 1}/layer.tar"
            archive.addfile(link)
            names.append("again/layer.tar")
        config = {"architecture": "amd64", "config": {"Env": ["LD_LIBRARY_PATH=/opt/a:/opt/b"]}}
        add("config.json", json.dumps(config).encode())
        add("manifest.json", json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode())
        add("repositories", b"{}")
    return buffer.getvalue()


def tar_of(tmp_path: Path, form: str) -> bytes:
    layers = [layer_tar(rows) for rows in LAYERS]
    if form.startswith("old"):
        return old_engine(layers, repeat=form == "old, a layer twice")
    layout = write_layout(tmp_path / "layout", layers, pack="gzip" if form == "packed" else "raw")
    return write_tar(layout, tmp_path / "image.tar").read_bytes()


@pytest.mark.parametrize("form", ["old", "old, a layer twice", "packed", "plain"])
def test_layers_lie_over_each_other(tmp_path: Path, form: str) -> None:
    engine = Engine(tar_of(tmp_path, form))
    with opened(engine, tmp_path / "members") as tree:
        assert contents(tree) == EXPECTED
        assert tree.environ["LD_LIBRARY_PATH"] == "/opt/a:/opt/b"
    assert engine.saves == 1


def test_what_no_pack_holds_is_asked_for_again(tmp_path: Path) -> None:
    engine = Engine(old_engine([layer_tar([("a", b"a")]), layer_tar([("b", b"b"), ("large", LARGE)])]))
    for _ in range(2):
        with opened(engine, tmp_path / "members") as tree, tree.open("/large") as view:
            assert view == LARGE
    assert engine.saves == 3  # the second time it lies in the cache


def test_the_disk_gets_packs_alone(tmp_path: Path) -> None:
    rows = [(f"data/{number}", LARGE) for number in range(20)]
    with opened(Engine(old_engine([layer_tar(rows)])), tmp_path / "members"):
        kept = [path for path in (tmp_path / "members").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) < len(LARGE)


@pytest.mark.parametrize("at", [100, 3000, -15000])
def test_a_stream_that_breaks_off_leaves_nothing(tmp_path: Path, at: int) -> None:
    engine = Engine(old_engine([layer_tar([("large", LARGE)])])[:at])
    with pytest.raises((IntegrityError, UsageError)):
        opened(engine, tmp_path / "members")
    assert list((tmp_path / "members").rglob("*.part")) == []


def test_a_layer_of_another_digest_is_refused(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", [layer_tar(LAYERS[0])], pack="raw")
    [row] = json.loads((layout / "manifest.json").read_text())
    (layout / row["Layers"][0]).write_bytes(layer_tar(LAYERS[1]))
    engine = Engine(write_tar(layout, tmp_path / "image.tar").read_bytes())
    with pytest.raises(IntegrityError, match="has the digest"):
        opened(engine, tmp_path / "members")

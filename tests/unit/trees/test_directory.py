"""The directory tree against what the kernel makes of the same paths, in a root of its own (chroot's rules)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.trees.directory import DirectoryTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("usr/lib/deep", "opt/real/lib", "opt/other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/lib/libx.so.1").write_bytes(b"x1")
    (tmp_path / "opt/real/lib/liby.so").write_bytes(b"y")
    (tmp_path / "usr/lib/liba.so").symlink_to("libx.so.1")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "opt/link").symlink_to("/opt/real/lib")  # absolute: inside the root
    (tmp_path / "opt/out").symlink_to("../../../../../../etc")  # cannot leave the root
    (tmp_path / "opt/circle").symlink_to("circle2")
    (tmp_path / "opt/circle2").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/lib/liba.so", "/usr/lib/libx.so.1"),
        ("/opt/link/liby.so", "/opt/real/lib/liby.so"),
        ("/opt/link/../lib/liby.so", "/opt/real/lib/liby.so"),  # .. leaves /opt/real/lib, where the link led
        ("/opt/./link//liby.so", "/opt/real/lib/liby.so"),
        ("/../usr/lib", "/usr/lib"),
        ("/", "/"),
        ("/opt/out/passwd", None),
        ("/opt/circle", None),
        ("/usr/lib/libx.so.1/more", None),
        ("/nowhere", None),
        ("/nowhere/../usr", None),
        ("/usr/lib/a\0b", None),
    ],
)
def test_links_are_followed_inside_the_root(root: Path, path: str, real: str | None) -> None:
    assert DirectoryTree(root).resolve(path) == real


def test_the_machine_itself_resolves_as_the_kernel_does(root: Path) -> None:
    (root / "opt/abs").symlink_to(root / "usr/lib")
    for path in (root / "lib/liba.so", root / "opt/abs/../lib/deep", root / "lib/.." / "lib"):
        assert DirectoryTree().resolve(str(path)) == os.path.realpath(path)


def test_entries_come_sorted_and_links_are_told_not_followed(root: Path) -> None:
    (root / "usr/lib.d").mkdir()
    (root / "usr/lib.d/conf").write_bytes(b"")
    found = list(DirectoryTree(root).entries())
    assert [e.path for e in found] == sorted(e.path for e in found)
    on_disk = {f"/{Path(d, f).relative_to(root)}" for d, _, files in os.walk(root) for f in files if f != "out"}
    links_to_directories = {"/lib", "/opt/link", "/opt/out"}
    assert {e.path for e in found} == on_disk | links_to_directories
    assert {e.path: e.link for e in found}["/usr/lib/liba.so"] == "libx.so.1"
    assert [e.path for e in DirectoryTree(root).entries("/lib/liba.so")] == ["/usr/lib/libx.so.1"]
    assert list(DirectoryTree(root).entries("/nowhere")) == []


def test_open_maps_the_file_and_what_is_kept_of_it_stays_readable(root: Path) -> None:
    tree = DirectoryTree(root)
    with tree.open("/lib/liba.so") as view:
        kept = view[1:]
    assert bytes(kept) == b"1"
    assert tree.prefix("/opt/link/liby.so", 10) == b"y"
    (root / "empty").write_bytes(b"")
    with tree.open("/empty") as view:
        assert len(view) == 0
    with pytest.raises(FileNotFoundError), tree.open("/nowhere"):
        pass


def test_a_pipe_is_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(IntegrityError, match="not a regular file"), DirectoryTree(root).open("/pipe"):
        pass

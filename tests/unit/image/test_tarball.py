from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stack_builder.image import tarball

PATHS = [
    "opt/short.py",
    "opt/" + "d" * 99 + "/f.py",
    "opt/" + "/".join(["directory-of-thirty-characters"] * 11) + "/" + "f" * 200,
    "opt/naïve/文件.txt",
]


@pytest.mark.parametrize("path", PATHS, ids=["short", "over 100", "over 500", "unicode"])
def test_gnu_tar_lists_what_was_meant(path: str, tmp_path: Path) -> None:
    parents = tarball.Parents()
    data = b"12345"
    archive = tmp_path / "a.tar"
    archive.write_bytes(
        parents.above(path)
        + tarball.file_header(path, len(data), tarball.EXECUTABLE)
        + data
        + tarball.padding(len(data))
        + tarball.symlink("opt/link", "short.py")
        + tarball.END
    )
    listing = subprocess.run(
        [
            "tar",
            "--list",
            "--verbose",
            "--numeric-owner",
            "--utc",
            "--full-time",
            "--quoting-style=literal",
            "-f",
            archive,
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    ).stdout.splitlines()
    assert listing[0].split() == ["drwxr-xr-x", "0/0", "0", "2025-01-01", "00:00:00", "opt/"]
    assert listing[-2].split() == ["-rwxr-xr-x", "0/0", "5", "2025-01-01", "00:00:00", path]
    assert listing[-1].split()[-3:] == ["opt/link", "->", "short.py"]
    names = [line.split()[5] for line in listing]
    assert len(names) == len(set(names)) == path.count("/") + 2


def test_parents_come_once_and_outermost_first() -> None:
    parents = tarball.Parents()
    first = parents.above("a/b/c/file")
    assert [first[n : n + 6].rstrip(b"\0") for n in range(0, len(first), 512)] == [b"a/", b"a/b/", b"a/b/c/"]
    assert parents.above("a/b/other") == b""
    assert parents.above("file-at-the-top") == b""

"""Writing in one step: the old content or the new, never half."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.files import atomic_write, atomic_writer, claimed_file, claimed_folder, read_regular, remove, sweep


def test_replaces_content_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    atomic_write(path, "old")
    atomic_write(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_content_and_nothing_beside(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(failure), atomic_writer(path) as file:
        file.write(b"half")
        raise failure
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_killed_writer_never_leaves_half_a_file(tmp_path: Path) -> None:
    """SIGKILL inside the block: the name still holds the old bytes."""
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import os, signal, sys; from pathlib import Path; from stack_builder.files import atomic_writer\n"
        "with atomic_writer(Path(sys.argv[1])) as f:\n"
        "    f.write(b'half'); f.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    atomic_write(path, "new")
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_what_somebody_is_writing_is_not_swept(tmp_path: Path) -> None:
    with claimed_file(tmp_path, suffix=".part") as (path, file), claimed_folder(tmp_path, prefix="new-") as folder:
        sweep(tmp_path, "*")
        assert path.exists()
        assert folder.exists()
        file.write(b"x")
    assert os.listdir(tmp_path) == []


def test_what_is_swept_before_it_is_claimed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a name and the lock on it another process may sweep."""
    real, swept = fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if how == fcntl.LOCK_EX and len(swept) < 2:
            swept.append(handle)
            sweep(tmp_path, "*")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    atomic_write(tmp_path / "file", "x")
    with claimed_folder(tmp_path, prefix="new-") as folder:
        assert folder.is_dir()
    assert len(swept) == 2
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_being_removed_has_no_name_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "base"
    (folder / "root").mkdir(parents=True)

    def interrupted(path: Path, **_: object) -> None:
        assert (path / "root").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        remove(folder)
    assert not folder.exists()
    monkeypatch.undo()
    sweep(tmp_path, ".*.part")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_from_a_disk_without_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "base"
    (folder / "root").mkdir(parents=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.mkdir", full)
    remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(IntegrityError, match="not a regular file"):
            read_regular(path, 10)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(IntegrityError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", 4)

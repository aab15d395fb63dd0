"""Writing in one step: the old content or the new, never half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.files import atomic_write, atomic_writer


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


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644

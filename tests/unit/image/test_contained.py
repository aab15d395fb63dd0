"""What mounts and starts things in a build ends with the build, also where that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack_builder.image.base.contained import run_contained
from tests.hardening.plugin import Recorder

PROGRAM = """
mount -t tmpfs stackb-test {folder}
mount -t proc proc {folder}/proc 2>/dev/null
echo here > {folder}/file
sleep 300 &
touch {ready}
wait
"""
RUN = """
import os, sys
from stack_builder.image.base.contained import run_contained
run_contained(["sh", "-c", sys.argv[1]], os.environ)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to mount on."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs root, and the right to mount")
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted"


def running(word: str) -> list[str]:
    """Processes, by the words that they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
        if word in words:
            found.append(words)
    return found


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send a signal, and again where it fell between Python's last look at signals and its wait in the kernel."""
    for _ in range(4):
        process.send_signal(number)
        try:
            return process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("it goes on")


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGINT, "Ctrl-C")])
def test_mounts_and_children_end_with_the_build(
    number: signal.Signals, name: str, folder: Path, hardened: Recorder
) -> None:
    ready = folder.with_name("ready")
    program = PROGRAM.format(folder=folder, ready=ready)
    build = subprocess.Popen([sys.executable, "-c", RUN, program], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(running(str(folder))) >= 2
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()  # nobody else has ever seen it
    assert not list(folder.iterdir())
    assert ended(build, number) == -number
    while running(str(folder)):  # the kernel ends what is left
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    folder.rmdir()  # which a mount would refuse
    hardened("build", f"{name} while packages of the base are installed: what is mounted for them")


def test_it_says_how_it_ended_and_what_was_said() -> None:
    done = run_contained(["sh", "-c", "echo out; echo E: no >&2; umask; exit 7"], os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n0022\n", "E: no\n")

"""``stackb fetch`` against an index that fails in every way a network can."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stack_builder.cli.app import run
from stack_builder.errors import IntegrityError, MachineError, StackbError, UsageError
from stack_builder.progress import Silent
from stack_builder.stack import lock as lock_file
from stack_builder.wheels import fetch as fetch_module
from stack_builder.wheels.fetch import Fetched, Network, Source, fetch
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import Index
from stack_builder.wheels.store import Store
from tests.hardening.plugin import Recorder

NAME = "demo-1.0-py3-none-any.whl"
BIG = random.Random(7).randbytes(1_000_000)
CHUNK = 64 << 10  # what httpx reads from a connection at a time

Fetch = Callable[..., tuple[Fetched, ...]]
Folder = Callable[[], Path]


@pytest.fixture
def fetch_all(index_server: Any, stack_folder: Folder) -> Iterator[Fetch]:
    """``fetch_all(**options)``: fetch the lock of everything served when it is first called."""
    with Http(stall=0.3, attempts=4, sleep=lambda _: None) as http:

        def call(folder: Path | None = None, offline: bool = False, jobs: int = 4) -> tuple[Fetched, ...]:
            place = call.stack = getattr(call, "stack", None) or stack_folder()  # type: ignore[attr-defined]
            indexes = {"default": Index("default", f"{index_server.url}/simple", http)}
            return fetch(
                lock_file.load(place),
                Store(),
                network=None if offline else lambda: Network(http, indexes),
                folder=folder,
                jobs=jobs,
                progress=Silent(),
            )

        yield call


def contents(done: tuple[Fetched, ...]) -> dict[str, bytes]:
    return {wheel.artifact.filename: wheel.path.read_bytes() for wheel in done}


def wheel_name(number: int) -> str:
    return f"p{number}-1.0-py3-none-any.whl"


@pytest.mark.parametrize("as_html", [False, True])
def test_fetches_once_and_then_from_the_store(index_server: Any, fetch_all: Fetch, as_html: bool) -> None:
    index_server.html = as_html
    wheels = {wheel_name(n): BIG[n : n + 50_000 * n] for n in range(1, 7)}
    for name, data in wheels.items():
        index_server.add(name, data)
    first = fetch_all()
    assert contents(first) == wheels
    assert {wheel.source for wheel in first} == {Source.INDEX}
    seen = len(index_server.log)
    second = fetch_all(offline=True)
    assert contents(second) == wheels
    assert {wheel.source for wheel in second} == {Source.STORE}
    assert len(index_server.log) == seen


def test_every_transient_failure_is_survived_without_repeating_bytes(
    index_server: Any, fetch_all: Fetch, hardened: Recorder
) -> None:
    index_server.add(NAME, BIG)
    faults = ["500", "500", "500", "cut:200000", "stall:200000", "reset:200000", "more"]
    index_server.faults[f"/files/{NAME}"] = deque(faults)
    assert contents(fetch_all()) == {NAME: BIG}
    requests = index_server.requests(NAME)
    # What a reset destroys on its way cannot be counted as received; all else must come once.
    assert sum(request.sent for request in requests) <= len(BIG) + 200_000
    assert [request.range for request in requests[:4]] == [None, None, None, None]
    assert requests[4].range == "bytes=200000-"
    assert requests[5].range == "bytes=400000-"
    title = "server: 500 three times, breaks off, stalls, resets, announces more than it sends"
    hardened("fetch", title, tried=len(faults), survived=len(faults), bound="bytes sent: file + 200 kB")


def test_a_server_that_cannot_continue_starts_again(index_server: Any, fetch_all: Fetch, hardened: Recorder) -> None:
    index_server.add(NAME, BIG)
    index_server.ranges = False
    index_server.faults[f"/files/{NAME}"] = deque(["cut:300000"])
    assert contents(fetch_all()) == {NAME: BIG}
    assert [request.sent for request in index_server.requests(NAME)] == [300_000, len(BIG)]
    hardened("fetch", "server: breaks off, and cannot continue a file", bound="one more download")


def test_a_trickle_counts_as_a_stall(
    index_server: Any, fetch_all: Fetch, monkeypatch: pytest.MonkeyPatch, hardened: Recorder
) -> None:
    monkeypatch.setattr("stack_builder.wheels.pace.WINDOW", 0.05)
    index_server.add(NAME, BIG[:2000])
    index_server.pace = (10, 0.02)
    with pytest.raises(MachineError, match="only trickles") as caught:
        # Every attempt brings some bytes, so only an end of the attempts may end it: leave it none.
        monkeypatch.setattr("stack_builder.wheels.http.Backoff.progress", lambda self: None)
        fetch_all()
    hardened("fetch", "server: sends a trickle for ever", code=3, shown=f"stackb: {caught.value}")


@pytest.mark.parametrize(
    ("what", "faults", "error", "reason"),
    [
        ("answers 500 for ever", ["500"] * 9, MachineError, r"no usable answer after 4 attempts \(HTTP status 500\)"),
        ("answers 401", ["401"], MachineError, "401"),
        ("answers 404", ["404"], StackbError, "not there"),
        ("announces more bytes", ["more", "to:file:///etc/passwd"], IntegrityError, "the lock says"),
        ("redirects to a file: address", ["to:file:///etc/passwd"], IntegrityError, "not followed"),
    ],
)
def test_lasting_failures_are_one_line(
    index_server: Any,
    fetch_all: Fetch,
    what: str,
    faults: list[str],
    error: type[StackbError],
    reason: str,
    hardened: Recorder,
) -> None:
    index_server.add(NAME, BIG)
    index_server.faults[f"/files/{NAME}"] = deque(faults)
    with pytest.raises(error, match=reason) as caught:
        fetch_all()
    assert len(str(caught.value).splitlines()) == 1
    assert not list(Store().root.rglob("*.whl"))
    hardened("fetch", f"server: {what}", code=caught.value.exit_code, shown=f"stackb: {caught.value}")


def test_the_wrong_range_is_refused(index_server: Any, fetch_all: Fetch, hardened: Recorder) -> None:
    index_server.add(NAME, BIG)
    index_server.faults[f"/files/{NAME}"] = deque(["cut:1000", "other-range"])
    with pytest.raises(IntegrityError, match="another range") as caught:
        fetch_all()
    hardened("fetch", "server: sends another range than was asked for", code=1, shown=f"stackb: {caught.value}")


def test_other_bytes_of_the_same_size_are_named(
    index_server: Any, fetch_all: Fetch, stack_folder: Folder, hardened: Recorder
) -> None:
    index_server.add(NAME, BIG)
    stack_folder()
    changed = bytes([BIG[0] ^ 1]) + BIG[1:]
    expected, got = hashlib.sha256(BIG).hexdigest(), hashlib.sha256(changed).hexdigest()
    fetch_all.stack = stack_folder()  # type: ignore[attr-defined]
    index_server.files[f"/files/{NAME}"] = changed
    with pytest.raises(IntegrityError) as caught:
        fetch_all()
    text = str(caught.value)
    assert all(part in text for part in (NAME, expected, got, f"{len(BIG)} bytes", "uploaded"))
    assert not list(Store().root.rglob("*.whl"))
    hardened("fetch", "server: one byte of a wheel is another", code=1, shown=f"stackb: {text}")


def test_a_new_upload_of_the_name_is_named(index_server: Any, fetch_all: Fetch, stack_folder: Folder) -> None:
    index_server.add(NAME, BIG)
    fetch_all.stack = stack_folder()  # type: ignore[attr-defined]
    index_server.rows["demo"][0] |= {"hashes": {"sha256": "0" * 64}, "upload-time": "2026-02-24T21:36:00Z"}
    with pytest.raises(IntegrityError, match=f"uploaded again.*the index has {'0' * 64} of 2026-02-24"):
        fetch_all()
    index_server.rows.clear()


def test_a_file_that_is_gone_is_named(index_server: Any, fetch_all: Fetch, stack_folder: Folder) -> None:
    index_server.add(NAME, BIG)
    fetch_all.stack = stack_folder()  # type: ignore[attr-defined]
    index_server.rows.clear()
    with pytest.raises(IntegrityError, match=f"{NAME}: is no longer on index 'default'.*--from DIR"):
        fetch_all()


def test_a_spoiled_part_costs_one_more_download(index_server: Any, fetch_all: Fetch, hardened: Recorder) -> None:
    index_server.add(NAME, BIG)
    store = Store()
    part = store.path(hashlib.sha256(BIG).hexdigest(), NAME).with_name(".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 400_000)
    assert contents(fetch_all()) == {NAME: BIG}
    assert [request.range for request in index_server.requests(NAME)] == ["bytes=400000-", None]
    hardened("fetch", "a part of an earlier run that has decayed", bound="one more download")


def test_folder_mirrors_come_first(index_server: Any, fetch_all: Fetch, tmp_path: Path) -> None:
    index_server.add(wheel_name(1), BIG[:1000])
    index_server.add(wheel_name(2), BIG[:2000])
    mirror = tmp_path / "mirror" / "deep" / "down"
    mirror.mkdir(parents=True)
    (mirror / wheel_name(1)).write_bytes(BIG[:1000])
    (mirror / wheel_name(2)).write_bytes(b"another build")
    done = fetch_all(folder=tmp_path / "mirror")
    assert [wheel.source for wheel in done] == [Source.FOLDER, Source.INDEX]
    assert contents(done) == {wheel_name(1): BIG[:1000], wheel_name(2): BIG[:2000]}


def test_offline_says_what_is_missing(index_server: Any, fetch_all: Fetch, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        index_server.add(wheel_name(number), BIG[:number])
    with pytest.raises(MachineError, match=rf"{wheel_name(1)}: not in the store and 2 more"):
        fetch_all(offline=True)
    for number in (1, 2, 3):
        (tmp_path / wheel_name(number)).write_bytes(BIG[:number] if number < 3 else b"?")
    with pytest.raises(IntegrityError, match=f"{wheel_name(3)}: sha256 is"):
        fetch_all(offline=True, folder=tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        fetch_all(folder=tmp_path / "nowhere")
    assert index_server.log == []


def test_disk_space_is_checked_before_anything_is_fetched(
    index_server: Any, fetch_all: Fetch, monkeypatch: pytest.MonkeyPatch, hardened: Recorder
) -> None:
    index_server.add(NAME, BIG)
    monkeypatch.setattr(fetch_module, "free_bytes", lambda folder: fetch_module.SPARE + len(BIG) - 1)
    with pytest.raises(MachineError, match=r"1 wheels need 1\.0 MB.*STACKB_CACHE_DIR") as caught:
        fetch_all()
    hardened("fetch", "a disk that is too small from the start", code=3, shown=f"stackb: {caught.value}")
    assert index_server.log == []
    assert not Store().root.exists()


def test_a_lock_without_a_hash_is_refused(index_server: Any, fetch_all: Fetch, stack_folder: Folder) -> None:
    index_server.add(NAME, BIG)
    folder = fetch_all.stack = stack_folder()  # type: ignore[attr-defined]
    path = folder / "artifacts.json"
    text = path.read_text()
    path.write_text(text.replace(f'"{hashlib.sha256(BIG).hexdigest()}"', "null"))
    with pytest.raises(UsageError, match="no sha256"):
        fetch_all()
    path.write_text(text.replace(hashlib.sha256(BIG).hexdigest(), hashlib.sha256(b"").hexdigest()))
    with pytest.raises(UsageError, match="sha256 is that of an empty file"):
        fetch_all()


def test_a_failure_ends_the_other_downloads_and_keeps_their_parts(index_server: Any, fetch_all: Fetch) -> None:
    index_server.add(wheel_name(1), BIG)
    index_server.add(wheel_name(2), BIG[:999_999])
    index_server.pace = (20_000, 0.02)
    index_server.faults[f"/files/{wheel_name(2)}"] = deque(["404"])
    with pytest.raises(StackbError, match="not there"):
        fetch_all()
    index_server.pace = None
    assert contents(fetch_all()) == {wheel_name(1): BIG, wheel_name(2): BIG[:999_999]}
    assert sum(request.sent for request in index_server.requests(wheel_name(1))) <= len(BIG) + 2 * CHUNK


# --- the command, as a process ----------------------------------------------------------------------------------


@pytest.fixture
def start(index_server: Any, private_cache: Path) -> Callable[..., subprocess.Popen[str]]:
    def run_command(*arguments: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "UV_DEFAULT_INDEX": f"{index_server.url}/simple", "NETRC": os.devnull}
        return subprocess.Popen(
            [sys.executable, "-m", "stack_builder", "fetch", *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run_command


Start = Callable[..., "subprocess.Popen[str]"]


def wait_for_bytes(index_server: Any, more: int, process: subprocess.Popen[str]) -> None:
    """Wait until the server has sent ``more`` bytes of files than now, or the process has ended."""
    before = sum(request.sent for request in index_server.log)
    while process.poll() is None and sum(request.sent for request in index_server.log) < before + more:
        time.sleep(0.002)


def test_killed_ten_times_it_still_ends_right(
    index_server: Any, start: Start, stack_folder: Folder, hardened: Recorder
) -> None:
    """SIGKILL at ten random moments: every hash right, and no byte sent twice beyond one chunk per kill and file."""
    wheels = {wheel_name(n): random.Random(n).randbytes(1_000_000 + n) for n in range(3)}
    for name, data in wheels.items():
        index_server.add(name, data)
    stack = stack_folder()
    index_server.pace = (4 << 10, 0.005)  # slow enough that little is under way when the signal comes
    chance = random.Random(8)
    kills = 0
    while kills < 10:
        with start(stack, "--jobs", 2) as process:
            wait_for_bytes(index_server, chance.randrange(10_000, 250_000), process)
            assert process.poll() is None, "it ended before it could be killed"
            process.send_signal(signal.SIGKILL)
            kills += 1
            process.communicate()
        for path in Store().root.rglob("*.whl"):
            assert path.read_bytes() == wheels[path.name]
    index_server.pace = None
    with start(stack, "--print-paths") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert {Path(line).name: Path(line).read_bytes() for line in out.splitlines()} == wheels
    assert not list(Store().root.rglob(".part"))
    sent = sum(request.sent for name in wheels for request in index_server.requests(name))
    wanted = sum(map(len, wheels.values()))
    assert wanted <= sent <= wanted + kills * 2 * CHUNK  # two downloads at a time
    bound = "bytes sent twice: 64 kB per kill and download"
    hardened("fetch", "SIGKILL at any moment of a slow download", tried=kills, survived=kills, bound=bound)


def test_two_processes_share_the_work(index_server: Any, start: Start, stack_folder: Folder) -> None:
    wheels = {wheel_name(n): random.Random(n).randbytes(200_000 + n) for n in range(4)}
    for name, data in wheels.items():
        index_server.add(name, data)
    index_server.pace = (16 << 10, 0.01)
    stack = stack_folder()
    with start(stack, "--print-paths") as first, start(stack, "--print-paths") as second:
        results = [process.communicate() for process in (first, second)]
    for process, (out, err) in zip((first, second), results, strict=True):
        assert process.returncode == 0, err
        assert {Path(line).name: Path(line).read_bytes() for line in out.splitlines()} == wheels
    for name, data in wheels.items():
        assert sum(request.sent for request in index_server.requests(name)) == len(data)


def test_ctrl_c_ends_a_stalled_download_and_keeps_its_part(
    index_server: Any, start: Start, stack_folder: Folder
) -> None:
    index_server.add(NAME, BIG)
    index_server.faults[f"/files/{NAME}"] = deque(["stall:300000"])
    stack = stack_folder()
    part = Store().path(hashlib.sha256(BIG).hexdigest(), NAME).with_name(".part")
    with start(stack) as process:
        while process.poll() is None and not (part.exists() and part.stat().st_size == 300_000):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)  # far below the 30 s that a stalled connection may take
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert part.stat().st_size == 300_000


def test_the_command_reports_on_stderr_only(
    index_server: Any, stack_folder: Folder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    index_server.add(NAME, BIG)
    stack = stack_folder()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index_server.url}/simple")
    assert run(["fetch", str(stack)]) == 0
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "demo: 1 wheel, 1.0 MB: 1 downloaded, hashes right. Store" in shown.err
    assert run(["fetch", str(stack), "--offline", "--print-paths"]) == 0
    shown = capfd.readouterr()
    assert Path(shown.out.strip()).read_bytes() == BIG
    assert (
        "1.0 MB: 1 already there, of the size, time, inode and mode they had when their hash was checked. Store"
        in shown.err
    )
    index_server.files.clear()
    monkeypatch.setenv("STACKB_CACHE_DIR", str(stack / "other"))
    assert run(["fetch", str(stack)]) == 3
    assert capfd.readouterr().err.splitlines()[-1].startswith("stackb: ")


def test_no_permission_is_one_line(
    index_server: Any, stack_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_server.add(NAME, BIG)
    stack = stack_folder()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STACKB_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index_server.url}/simple")
    assert run(["fetch", str(stack)]) == 3
    assert threading.active_count() < 20

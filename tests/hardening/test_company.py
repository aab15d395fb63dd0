"""Several at once on one store; a clock that jumps; places that cannot be written to; a disk that is really full."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.serve.processes import listener
from tests.hardening.faulty import Faulty, Host, Mode
from tests.hardening.plugin import Recorder, Sample
from tests.hardening.scenes import BOUND, Scene, area
from tests.hardening.test_faults import HEARD, told
from tests.unit.serve.conftest import Serve

SCENES = ["fetch", "build layout", "patch apply", "history", "cache prune", "pull", "push"]


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("scene", ["fetch", "build layout", "pull", "push"], indirect=True)
def test_at_once_on_one_store(scene: Scene, count: int, request: pytest.FixtureRequest, hardened: Recorder) -> None:
    scene.begin()
    done = scene.faulty.together([scene.argv] * count)
    assert [one.code for one in done] == [0] * count, done
    assert len({tuple(one.out.splitlines()[:1]) for one in done}) == 1  # of a build, a pull, a push: the image's digest
    scene.ended()
    command = request.node.callspec.params["scene"]
    hardened(area(command), f"{count} processes at once on one store: {command}", tried=count, survived=count)


@pytest.mark.parametrize("scene", ["build layout"], indirect=True)
def test_builds_and_prunes_at_once(scene: Scene, hardened: Recorder) -> None:
    """Each of four builds ends well, whatever four others remove from under it that nobody uses just then."""
    scene.begin()
    prune = ("cache", "prune", "--all")
    done = scene.faulty.together([scene.argv, prune] * 4)
    assert [one.code for one in done[::2]] == [0] * 4, done
    assert all(one.code == 0 or "another stackb uses the cache" in one.line for one in done[1::2]), done
    assert scene.run().code == 0  # brings back what a prune after the last build took
    scene.ended()
    hardened("cache", "4 builds and 4 times prune --all at once on one store", tried=8, survived=8)


@pytest.mark.parametrize("scene", SCENES, indirect=True)
def test_a_clock_that_jumps(scene: Scene, request: pytest.FixtureRequest, hardened: Recorder) -> None:
    assert scene.survives(Mode.CLOCK).code == 0
    scene.ended()
    command = request.node.callspec.params["scene"]
    hardened(area(command), f"the clock jumps a day ahead and back at every look: {command}", bound=BOUND)


@pytest.mark.parametrize("scene", SCENES, indirect=True)
def test_nothing_can_be_written(scene: Scene, request: pytest.FixtureRequest, hardened: Recorder) -> None:
    scene.begin()
    done = scene.run(Mode.FULL, 0, errno.EROFS)
    line = told(done, errno.EROFS)
    assert scene.run().code == 0
    scene.ended()
    command = request.node.callspec.params["scene"]
    hardened(area(command), f"read-only file system: {command}", code=3, shown=line)


@pytest.mark.parametrize("scene", ["fetch"], indirect=True)
def test_a_read_only_cache_that_has_everything_serves(scene: Scene, hardened: Recorder) -> None:
    assert scene.run().code == 0
    done = scene.run(Mode.FULL, 0, errno.EROFS)
    assert (done.code, done.line) == (0, "")
    scene.ended()
    hardened("fetch", "read-only cache that has every wheel")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scene", SCENES, indirect=True)
@pytest.mark.parametrize(
    ("mode", "what"),
    [(Mode.READ_FAIL, "a read fails"), (Mode.READ_SHORT, "every read is short")],
    ids=["fails", "short"],
)
def test_reads(
    scene: Scene, mode: Mode, what: str, request: pytest.FixtureRequest, hardened: Recorder, sample: Sample
) -> None:
    command = request.node.callspec.params["scene"]
    scene.begin()
    reads = scene.run(Mode.READ_FAIL, -1).seen
    if mode is Mode.READ_SHORT:
        assert scene.survives(mode).code == 0
        hardened(area(command), f"{what}: {command}", bound=BOUND)
        return
    numbers = sample(reads, 2)
    for number in numbers:
        done = scene.survives(mode, number, errno.EIO)
        if done.code:
            told(done, errno.EIO)
    shown = f"stackb: PATH: {HEARD[errno.EIO]}"
    hardened(
        area(command),
        f"{what}: {command}",
        tried=len(numbers),
        survived=len(numbers),
        cases=reads,
        code=3,
        shown=shown,
        bound=BOUND,
    )


# --- a small disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(faulty: Faulty) -> Iterator[Path]:
    """A tmpfs of 700 kB."""
    folder = faulty.folder / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=700k", "stackb-test", folder]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs root, and the right to mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("what", "cache", "output", "says"),
    [
        ("cache", "disk/cache", "out", "2 wheels need "),
        ("output folder", "cache", "disk/out", HEARD[errno.ENOSPC]),
        ("output archive", "cache", "disk/out.tar", " needed, "),
    ],
)
def test_a_small_disk(
    what: str,
    cache: str,
    output: str,
    says: str,
    disk: Path,
    faulty: Faulty,
    make_wheel: Callable[..., Path],
    kit: SimpleNamespace,
    base_layout: Path,
    hardened: Recorder,
) -> None:
    place, wheels = faulty.folder.with_name("tiny"), base_layout.with_name("wheels")
    noise = random.Random(1).randbytes(500_000)
    made = [make_wheel(name, {f"{name}.bin": noise + name.encode()}) for name in ("demo", "tool")]
    kit.write_stack(place, [kit.wheel_record(path) for path in made])
    argv = ("build", place, "--base", f"oci:{base_layout}", "--offline", "--from", wheels, "--no-bytecode", "--jobs", 1)
    faulty.env["STACKB_CACHE_DIR"] = str(faulty.folder / cache)
    full = faulty(*argv, "--output", output)
    assert full.code == 3, full
    assert says in full.line
    assert "\n" not in full.line
    assert not (disk / "out" / "index.json").exists()
    assert not (disk / "out.tar").exists()
    assert not list(disk.rglob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)
    again = faulty(*argv, "--output", output)
    assert again.code == 0, again.err
    shutil.rmtree(faulty.folder / "other", ignore_errors=True)
    faulty.env["STACKB_CACHE_DIR"] = str(faulty.folder / "other")
    elsewhere = faulty(*argv, "--output", "elsewhere")
    assert again.out.splitlines()[0] == elsewhere.out.splitlines()[0]
    assert json.loads((faulty.folder / "elsewhere" / "index.json").read_bytes())
    hardened("build", f"a tmpfs of 700 kB as {what}", code=3, shown=full.line if what == "output folder" else "")


def test_readiness_under_a_clock_that_jumps(serve: Serve, port: int, host: Host, hardened: Recorder) -> None:
    clock = {"LD_PRELOAD": str(host.library), "FAULTS": f"/:{int(Mode.CLOCK)}:0:0"}
    child = serve("--spec", "none", "--model", "some/target", "--detach", "--format", "json", **clock)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    seconds = [float(found) for found in re.findall(r"^ *(-?[0-9.]+) s  ", errors, re.MULTILINE)]
    assert seconds
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] < 60
    stopping = serve("--stop", **clock)
    stopping.communicate(timeout=60)
    assert stopping.returncode == 0
    assert listener(port) is None
    hardened("serve", "the clock jumps a day ahead and back at every look: start, readiness, stop")

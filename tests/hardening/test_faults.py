"""Disks that are full, broken or read-only, a clock that jumps, and company."""

from __future__ import annotations

import errno

import pytest

from tests.hardening.faulty import Done, Mode
from tests.hardening.plugin import Recorder, Sample
from tests.hardening.scenes import BOUND, Scene, area

SAMPLE = 2  # calls of each command and fault, unless all are asked for


HEARD = {
    errno.ENOSPC: "No space left on device. Free some space or point STACKB_CACHE_DIR at a larger disk.",
    errno.EIO: "Input/output error. Check that disk; the kernel's log says more.",
    errno.EROFS: "Read-only file system. Point STACKB_CACHE_DIR or --output at a writable place.",
}
AFTER_COMMIT = "Remove its cause and run the same command again."  # a patch is finished by the next run


def told(done: Done, error: int) -> str:
    """Check the line of a failed run; give it without the place, which depends on the call that failed."""
    assert done.code == 3, done
    place, _, rest = done.line.removeprefix("stackb: ").rpartition(": ")
    assert (
        place.startswith(("/", "venv", "layout", "archive", "demo", "tool", "image", "new", "stack"))
        or error == errno.EIO
    ), done.line
    assert rest == HEARD[error] or rest.endswith(AFTER_COMMIT), done.line
    return f"stackb: PATH: {HEARD[error]}"


@pytest.fixture
def command(request: pytest.FixtureRequest) -> str:
    """The name of the scene."""
    return str(request.node.callspec.params["scene"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mode", "error", "what"),
    [(Mode.FULL, errno.ENOSPC, "the disk is full from"), (Mode.FAIL, errno.EIO, "the disk fails at")],
    ids=["full", "broken"],
)
def test_a_disk_that_fails(
    scene: Scene, mode: Mode, error: int, what: str, command: str, hardened: Recorder, sample: Sample
) -> None:
    numbers = sample(scene.cases, SAMPLE)
    for number in numbers:
        done = scene.survives(mode, number, error)
        if done.code:  # some calls may fail: what they do is only kept for the next run
            told(done, error)
    hardened(
        area(command),
        f"{what} a system call that writes: {command}",
        tried=len(numbers),
        survived=len(numbers),
        cases=scene.cases,
        code=3,
        shown=f"stackb: PATH: {HEARD[error]}",
        bound=BOUND,
    )

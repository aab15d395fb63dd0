"""SIGKILL at every system call that changes a file: nothing wrong is trusted, the next run ends well."""

from __future__ import annotations

import pytest

from tests.hardening.faulty import Mode
from tests.hardening.plugin import Recorder, Sample
from tests.hardening.scenes import BOUND, Scene, area

SAMPLE = 3  # calls of each command and kind, unless all are asked for


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mode", "what"),
    [
        (Mode.KILL, "SIGKILL before a system call that writes"),
        (Mode.TEAR, "SIGKILL after half of a write"),
    ],
    ids=["before", "half-way"],
)
def test_a_killed_command_leaves_nothing_wrong(
    scene: Scene, mode: Mode, what: str, request: pytest.FixtureRequest, hardened: Recorder, sample: Sample
) -> None:
    command = request.node.callspec.params["scene"]
    numbers = sample(scene.cases, SAMPLE)
    for number in numbers:
        scene.survives(mode, number)
    hardened(
        area(command),
        f"{what}: {command}",
        tried=len(numbers),
        survived=len(numbers),
        cases=scene.cases,
        bound=BOUND,
    )

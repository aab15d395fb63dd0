"""Each target for a moment, always on the same inputs, and on those that once were findings."""

from __future__ import annotations

import pytest

from tests.fuzz.runner import bounded, examine, kept, run
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_moment_of_each_target(name: str) -> None:
    outcome = run(name, TARGETS[name], 0.3, seed=7, most=20)  # a fast machine tries no others than a slow one
    assert outcome.finding is None
    assert outcome.inputs > 0


@pytest.mark.parametrize("path", [path for name in TARGETS for path in kept(name)], ids=lambda path: path.name)
def test_what_was_found_stays_mended(path) -> None:
    with bounded():
        examine(TARGETS[path.parent.name], path.read_bytes())

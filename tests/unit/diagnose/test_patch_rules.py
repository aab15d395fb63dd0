"""From states of patches to findings: a series that someone wants is judged more strictly than all there are."""

from __future__ import annotations

import pytest

from stack_builder.diagnose.patches.judge import Seen, judge
from stack_builder.patchset import model
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.states import State, Status
from stack_builder.report import Target

PATCH = model.available()["symm-mem-sm12"]
SGLANG = Distribution("sglang", "0.5.23", "sglang-0.5.23.dist-info", lambda path: b"")


def judged(*seen: Seen, asked: bool = True, interrupted: bool = False) -> list[tuple[str, str]]:
    report = judge(Target("venv", "v"), seen, asked=asked, installed=True, interrupted=interrupted)
    return [(finding.rule, finding.severity.value) for finding in report.findings]


def stands(state: State, *, extra: bool = False, no_effect: str | None = None) -> Seen:
    return Seen(PATCH, SGLANG, Status(PATCH, state, "why", no_effect), extra)


@pytest.mark.parametrize(
    ("seen", "in_a_series", "among_all"),
    [
        (stands(State.APPLIED), [], []),
        (stands(State.APPLIES), [("PATCH006", "warning")], []),
        (stands(State.DRIFTED), [("PATCH001", "error")], [("PATCH001", "error")]),
        (stands(State.CONFLICT), [("PATCH002", "error")], []),
        (stands(State.OBSOLETE), [("PATCH003", "error")], []),
        (Seen(PATCH), [("PATCH003", "error")], []),
        (stands(State.APPLIED, extra=True), [("PATCH007", "warning")], []),
        (stands(State.APPLIED, no_effect="PCIe"), [("PATCH004", "note")], [("PATCH004", "note")]),
    ],
)
def test_what_each_state_means(
    seen: Seen, in_a_series: list[tuple[str, str]], among_all: list[tuple[str, str]]
) -> None:
    assert judged(seen) == in_a_series
    assert judged(seen, asked=False) == among_all


def test_a_run_that_was_interrupted_is_an_error_whatever_else_is_seen() -> None:
    assert judged(interrupted=True) == [("PATCH005", "error")]

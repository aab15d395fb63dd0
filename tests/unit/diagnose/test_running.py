"""What is said of a running server: speculation that does nothing, features that nothing proves."""

from __future__ import annotations

import pytest

from stack_builder.diagnose.running import Acceptance, RunningFacts, judge_running
from stack_builder.report import Finding

EAGLE3 = [("--speculative-algorithm", "EAGLE3"), ("--speculative-algorithm=EAGLE3",)]
GOOD = Acceptance(requests=8, tokens=512, verify_steps=200)


def judged(*arguments: str, acceptance: Acceptance | None = GOOD, limit: int | None = None) -> dict[str, Finding]:
    """Findings by rule, on what was asked for; not on what SGLang does by default."""
    facts = RunningFacts(arguments, {}, {"tp_size": 8}, limit, {}, acceptance)
    return {finding.rule: finding for finding in judge_running(facts) if finding.object != "default"}


@pytest.mark.parametrize("arguments", EAGLE3)
def test_a_server_that_verifies_nothing_does_not_speculate(arguments: tuple[str, ...]) -> None:
    found = judged(*arguments, acceptance=Acceptance(requests=8, tokens=512, verify_steps=0))
    assert list(found) == ["RUN003"]
    assert found["RUN003"].evidence["verify_steps"] == 0


@pytest.mark.parametrize("arguments", EAGLE3)
def test_a_draft_that_is_hardly_ever_right_is_named(arguments: tuple[str, ...]) -> None:
    found = judged(*arguments, acceptance=Acceptance(requests=8, tokens=512, verify_steps=510))
    assert list(found) == ["RUN002"]
    assert judged(*arguments) == {}


@pytest.mark.parametrize("arguments", EAGLE3)
def test_the_cap_that_comes_with_eagle_is_named_where_none_was_given(arguments: tuple[str, ...]) -> None:
    assert list(judged(*arguments, limit=48)) == ["RUN005"]
    assert judged(*arguments, "--max-running-requests", "48", limit=48) == {}
    assert judged(limit=48) == {}


def test_a_feature_that_nothing_proves_is_a_note() -> None:
    """torch_symm_mem.py of SGLang logs only why it is off."""
    found = judged("--enable-torch-symm-mem")
    assert {rule: (finding.severity.value, finding.object) for rule, finding in found.items()} == {
        "RUN004": ("note", "--enable-torch-symm-mem")
    }

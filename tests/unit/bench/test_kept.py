"""Trials and runs kept under ``docs/bench``: they keep the promise, and the README says what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

KEPT = Path(__file__).parents[3] / "docs" / "bench"
SAID = (KEPT / "README.md").read_text(encoding="utf-8")


def test_planted_crossovers_were_found(benchmark_script: Callable[[str], ModuleType]) -> None:
    planted = benchmark_script("planted")
    lines = (KEPT / "planted" / "trials.jsonl").read_text().splitlines()
    trials = [planted.Trial(**json.loads(line)) for line in lines]
    by_kind = {name: [one for one in trials if one.scenario == name] for name in planted.SCENARIOS}
    assert not any(one.rejected for one in trials)
    for name in ("crossing", "touching", "founding"):
        assert sorted(one.seed for one in by_kind[name]) == list(range(40))
    assert sum(one.covers for one in by_kind["crossing"]) >= 36
    assert sum(one.value is not None for one in by_kind["touching"]) <= 2
    assert sum(one.verdicts["1"] == "inconclusive" for one in by_kind["founding"]) >= 36
    assert {one.value for one in by_kind["founding-levels"]} == {None}
    for one in by_kind["crossing"]:
        for level, verdict in one.verdicts.items():
            assert verdict != ("pays" if float(level) > one.truth else "doesn't pay")
    for line in planted.summary(trials):
        assert line in SAID


def test_figures_are_those_of_bench_serving(benchmark_script: Callable[[str], ModuleType]) -> None:
    agreement = benchmark_script("load_agreement")
    runs = [json.loads(line) for line in (KEPT / "agreement.jsonl").read_text().splitlines()]
    assert len(runs) >= 4
    for run in runs:
        for client in run.values():
            assert client["output tokens"] == client["server"] == 3072
        assert not [figure for figure in run["stackb fresh"] if agreement.differs(run, figure, "stackb fresh")]
    for line in agreement.summary(runs):
        assert line in SAID

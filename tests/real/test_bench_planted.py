"""A crossover that is known, found by the real client through live servers (``benchmarks/planted.py``).

Two short trials here, of which a busy machine may make the answer open but never wrong; forty of each kind are kept.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "bench" / "planted" / "trials.jsonl"


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted", ROOT / "benchmarks" / "planted.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planted"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_interval_covers_a_planted_crossover(planted: ModuleType) -> None:
    found = planted.trial("crossing", 5, levels=(2, 10, 40), rounds=(5, 5))
    assert (found.runs, found.rejected) == (30, 0)
    assert found.value is None or found.covers, found
    assert found.verdicts["2"] != "doesn't pay"
    assert found.verdicts["40"] != "pays"


def test_curves_that_touch_give_no_number(planted: ModuleType) -> None:
    found = planted.trial("touching", 5, levels=(2, 10, 40), rounds=(5, 5))
    assert (found.runs, found.rejected) == (30, 0)
    assert found.value is None, found
    assert found.verdicts["2"] != "doesn't pay"


def test_the_kept_trials_keep_the_promise(planted: ModuleType) -> None:
    trials = [planted.Trial(**json.loads(line)) for line in KEPT.read_text().splitlines()]
    by_kind = {name: [one for one in trials if one.scenario == name] for name in planted.SCENARIOS}
    assert sum(one.rejected for one in trials) == 0
    for name in ("crossing", "touching", "founding"):
        assert sorted(one.seed for one in by_kind[name]) == list(range(40))
    assert sum(one.covers for one in by_kind["crossing"]) >= 36
    assert sum(one.value is not None for one in by_kind["touching"]) <= 2
    assert sum(one.verdicts["1"] == "inconclusive" for one in by_kind["founding"]) >= 36
    assert [one.value for one in by_kind["founding-levels"]] == [None] * 10
    for line in planted.summary(trials):  # the README says what the data say
        assert line in KEPT.with_name("README.md").read_text()

"""A crossover that is known, found by the real client (``benchmarks/planted.py``).

Here in simulated time, a few trials of each kind; forty of each through live servers are kept in docs/bench/planted/,
and ``STACKB_TEST_PLANTED=N`` runs N of each again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stack_builder.cli.app import run
from tests.unit.bench.simulation import Simulation

LIVE = int(os.environ.get("STACKB_TEST_PLANTED", "0"))


@pytest.fixture(scope="module")
def planted(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("planted")


@pytest.fixture
def simulation(llm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    made = Simulation(llm)
    monkeypatch.setattr("asyncio.run", made.run)
    yield made
    made.close()


def trial(planted: ModuleType, llm: ModuleType, simulation: Simulation, name: str, seed: int, place: Path) -> Any:
    """One trial in simulated time, at fewer levels."""

    def server(words: tuple[str, ...]) -> str:
        given = llm.options(words)
        return simulation.server(**{key: given[key] for key in given.keys() - {"port", "certificate"}})

    plan, out = planted.SCENARIOS[name](seed, place), place / "results.json"
    if plan.levels == planted.LEVELS:
        plan = replace(plan, levels=(2, 12, 50))
    assert run(planted.call(plan, seed, server(plan.base), server(plan.eagle), out)) == 0
    return planted.answer(name, seed, plan.truth, out, 0.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_interval_covers_a_planted_crossover(
    seed: int, planted: ModuleType, llm: ModuleType, simulation: Simulation, tmp_path: Path
) -> None:
    """At 29.8 and 7.7 clients."""
    found = trial(planted, llm, simulation, "crossing", seed, tmp_path)
    assert found.rejected == 0
    assert found.covers, found
    assert found.high / found.low < 2


def test_curves_that_touch_give_no_number(
    planted: ModuleType, llm: ModuleType, simulation: Simulation, tmp_path: Path
) -> None:
    found = trial(planted, llm, simulation, "touching", 0, tmp_path)
    assert (found.rejected, found.value) == (0, None)
    assert found.verdicts["2"] == "pays"


def test_the_founding_reports_runs_leave_it_open(
    planted: ModuleType, llm: ModuleType, simulation: Simulation, tmp_path: Path
) -> None:
    found = trial(planted, llm, simulation, "founding", 0, tmp_path)
    assert found.ratios["1"] == pytest.approx(96.1 / 92.6, abs=1e-4)
    assert (found.runs, found.verdicts["1"], found.value) == (20, "inconclusive", None)


@pytest.mark.skipif(not LIVE, reason="STACKB_TEST_PLANTED=N is not set")
@pytest.mark.timeout(60 * max(LIVE, 1))
@pytest.mark.parametrize("name", ["crossing", "touching", "founding"])
def test_live_servers(name: str, planted: ModuleType) -> None:
    trials = [planted.trial(name, seed) for seed in range(LIVE)]
    if name == "crossing":
        assert sum(one.covers for one in trials) >= 0.9 * LIVE
    else:
        assert sum(one.value is not None for one in trials) <= 0.05 * LIVE

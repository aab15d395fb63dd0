"""The stand-in server of ``tests/fixtures/llm`` and results made by a stated law, without a clock."""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from stack_builder.bench.metrics import Figures
from stack_builder.bench.results import ArmResult, Results, RunResult, Settings
from stack_builder.bench.server import ServerFacts

SERVER = Path(__file__).parents[2] / "fixtures" / "llm" / "server.py"
MakeResults = Callable[..., Results]


@pytest.fixture(scope="session")
def llm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llm_server", SERVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llm_server"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def benchmark_script() -> Callable[[str], ModuleType]:
    """Give a script of ``benchmarks/`` as a module."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(SERVER.parents[3] / "benchmarks")
            return importlib.import_module(name)

    return load


def figures(throughput: float, clients: float = 1.0) -> Figures:
    return Figures(
        requests=4,
        completed=4,
        errors={},
        messages=(),
        seconds=1.0,
        prompt_tokens=40,
        tokens=round(throughput),
        throughput=throughput,
        full_seconds=1.0,
        full_throughput=throughput,
        ttft=None,
        tpot=None,
        itl=None,
        e2e=None,
        goodput=None,
        accept_length=None,
    )


@pytest.fixture
def results() -> MakeResults:
    """Make results of arms whose throughput follows a law of the level, with noise from run to run."""

    def make(
        laws: Mapping[str, Callable[[float], float]],
        *,
        arguments: Mapping[str, Mapping[str, object]] | None = None,
        levels: tuple[float, ...] = (1, 2, 5, 10, 30, 70, 100, 250),
        rounds: int = 6,
        noise: float = 0.02,
        seed: int = 0,
        version: str | None = "0.5.23",
        limit: int | None = 256,
        batch_share: float | None = 1.0,
    ) -> Results:
        chance = random.Random(seed)
        runs = [
            RunResult(
                name,
                level,
                number,
                0,
                "2026-01-01T00:00:00Z",
                figures(law(level) * math.exp(chance.gauss(0, noise))),
                running=None if batch_share is None else level * batch_share,
            )
            for number in range(rounds)
            for level in levels
            for name, law in laws.items()
        ]
        given = arguments or {}
        arms = tuple(ArmResult(name, "", ServerFacts(version, limit, given.get(name, {}))) for name in laws)
        settings = Settings("generate", levels, 64, rounds=rounds, max_rounds=rounds)
        return Results(
            "20260101T000000Z-abc123", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", settings, arms, tuple(runs)
        )

    return make

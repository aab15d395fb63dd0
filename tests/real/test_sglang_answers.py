"""What SGLang 0.5.17 answered on an H200 (tests/gpu/record/sglang-0.5.17/), as bench and serve read it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stack_builder.bench.pool import Pool
from stack_builder.bench.server import ServerEye
from stack_builder.bench.wire import Endpoint
from stack_builder.diagnose.running import Acceptance, RunningFacts, judge_running

ANSWERS = Path(__file__).parents[1] / "gpu" / "record" / "sglang-0.5.17"
FILES = {"/server_info": "server_info-{}.json", "/v1/loads?include=core": "loads-{}.json", "/metrics": "metrics-{}.txt"}


@pytest.fixture
def eye(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ServerEye:
    async def recorded(_self: ServerEye, path: str) -> str:
        return (ANSWERS / FILES[path].format(request.param)).read_text()

    monkeypatch.setattr(ServerEye, "_text", recorded)
    return ServerEye(Pool(Endpoint.of("http://127.0.0.1:1"), patience=1.0))


@pytest.mark.parametrize("eye", ["base", "adaptive"], indirect=True)
def test_bench_knows_the_limit_the_release_and_what_speculates(eye: ServerEye, request: pytest.FixtureRequest) -> None:
    adaptive = request.node.callspec.params["eye"] == "adaptive"
    facts = asyncio.run(eye.facts())
    assert (facts.version, facts.limit) == ("0.5.17", 256)
    assert (facts.adaptive, facts.speculates) == (adaptive, adaptive)
    assert facts.arguments.get("speculative_num_steps") == (7 if adaptive else None)


@pytest.mark.parametrize("eye", ["adaptive"], indirect=True)
def test_bench_sees_the_batch_and_no_retracted_request(eye: ServerEye) -> None:
    async def watched() -> tuple[list[int], float | None]:
        async with eye.watching() as watch:
            await asyncio.sleep(0.2)
        return watch.running, watch.retracted

    running, retracted = asyncio.run(watched())
    assert set(running) == {0}
    assert retracted == 0


def test_an_adaptive_server_that_does_not_draft_is_not_warned_of() -> None:
    """Recorded: 256 tokens in 252 steps of a server whose policy was never to draft."""

    def rules(*, adaptive: bool) -> set[str]:
        arguments = ("--speculative-algorithm", "EAGLE3", "--max-running-requests", "256")
        facts = RunningFacts(
            arguments,
            {},
            {"speculative_adaptive": adaptive},
            256,
            {},
            Acceptance(requests=4, tokens=256, verify_steps=252),
        )
        return {finding.rule for finding in judge_running(facts)}

    assert "RUN002" not in rules(adaptive=True)
    assert "RUN002" in rules(adaptive=False)

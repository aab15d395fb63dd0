"""The load generator over real sockets, against the stand-in server's own books, mostly in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from stack_builder.bench.load import Load, Record, Run, Stop, run
from stack_builder.bench.metrics import figures, parse_slo
from stack_builder.bench.pool import Pool
from stack_builder.bench.statistics import quantile
from stack_builder.bench.stream import Api, Counted
from stack_builder.bench.wire import Endpoint, ErrorKind
from stack_builder.errors import UsageError
from tests.unit.bench.simulation import Simulation

PROMPTS = [f"prompt {number}" for number in range(5)]


def measured(
    llm: ModuleType,
    load: Load,
    *,
    fail: list[str] | None = None,
    patience: float = 20.0,
    stop_after: float | None = None,
    **law: Any,
) -> tuple[Run, Any]:
    simulation = Simulation(llm)
    url = simulation.server(**{"rate": 20_000, **law})
    server = simulation.servers[url]
    server.fail = list(fail or [])

    async def go() -> Run:
        pool, stop = Pool(Endpoint.of(url), patience=patience), Stop()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.ask)
        try:
            return await run(pool, load, PROMPTS, stop=stop)
        finally:
            pool.close()

    with contextlib.closing(simulation):
        return simulation.run(go()), server


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("per_event", [1, 3])
def test_tokens_are_the_servers_count_exactly(llm: ModuleType, api: Api, per_event: int) -> None:
    done, server = measured(llm, Load(api=api, tokens=20, clients=4, requests=12), per_event=per_event)
    seen = figures(done)
    assert seen.tokens == server.tokens == 240
    assert (seen.completed, seen.errors, seen.prompt_tokens) == (12, {}, 84)
    events = -(-20 // per_event)
    assert all(len(record.times) == events for record in done.records)
    if api is Api.GENERATE and per_event > 1:
        assert seen.accept_length == pytest.approx(20 / events)


def test_an_answer_may_take_longer_than_the_limit_while_events_come(llm: ModuleType) -> None:
    done, _ = measured(llm, Load(tokens=20, clients=1, requests=1), patience=4.0, rate=2)
    assert figures(done).errors == {}
    assert done.records[0].times[-1] - done.records[0].times[0] > 8


def test_prompts_go_out_in_order(llm: ModuleType) -> None:
    _, server = measured(llm, Load(tokens=2, clients=1, requests=7))
    assert [body["prompt"] for body in server.bodies] == [PROMPTS[number % 5] for number in range(7)]


TROUBLE = {
    "reset": ErrorKind.RESET,
    "503": ErrorKind.HTTP,
    "garbage": ErrorKind.PROTOCOL,
    "cut": ErrorKind.TRUNCATED,
    "error": ErrorKind.STREAM,
    "nousage": ErrorKind.USAGE,
    "silence": ErrorKind.TIMEOUT,
}


@pytest.mark.parametrize(("trouble", "kind"), TROUBLE.items())
def test_every_failure_has_its_class_and_none_is_lost(llm: ModuleType, trouble: str, kind: ErrorKind) -> None:
    load = Load(tokens=8, clients=1, requests=3)
    done, _ = measured(llm, load, fail=["", trouble, *([trouble] if trouble == "reset" else [])])
    seen = figures(done)
    assert seen.errors == {kind.value: 1}
    assert (seen.requests, seen.completed) == (3, 2)
    assert len(seen.messages) == 1


def test_a_connection_closed_while_idle_is_no_failure(llm: ModuleType) -> None:
    """One reset on a kept-alive connection before any byte: the request goes out again on a new one."""
    done, _ = measured(llm, Load(tokens=4, clients=1, requests=3), fail=["", "reset"])
    assert figures(done).errors == {}


@pytest.mark.parametrize(("fresh", "opened"), [(False, 1), (True, 5)])
def test_connections_are_kept_or_fresh(llm: ModuleType, fresh: bool, opened: int) -> None:
    async def go() -> tuple[Run, int]:
        server, seen = llm.LlmServer(llm.Law(rate=20_000)), []
        serve = server._serve
        server._serve = lambda reader, writer: (seen.append(writer), serve(reader, writer))[1]
        pool = Pool(Endpoint.of(f"http://127.0.0.1:{await server.start()}"), fresh=fresh)
        try:
            return await run(pool, Load(tokens=4, clients=1, requests=5), PROMPTS), len(seen)
        finally:
            pool.close()
            await server.stop()

    done, connections = asyncio.run(go())
    assert figures(done).completed == 5
    assert connections == opened


def test_nobody_listens() -> None:
    async def go() -> Run:
        return await run(Pool(Endpoint.of("http://127.0.0.1:1")), Load(clients=2, requests=4), PROMPTS)

    assert figures(asyncio.run(go())).errors == {"refused": 4}


def test_open_loop_sends_whatever_is_in_flight(llm: ModuleType) -> None:
    """Requests take 0.4 s, so most of what arrives in 0.3 s is in flight at once; none is early."""
    load = Load(tokens=4, requests=60, rate=200.0, seed=3)
    done, server = measured(llm, load, rate=10.0)
    assert figures(done).completed == 60
    starts = [record.started for record in done.records]
    chance, due = random.Random(load.seed), starts[0]
    for earlier, later in pairwise(starts):
        due += chance.expovariate(200.0)
        assert later >= max(due - 0.002, earlier)
    assert sum(record.ended > starts[-1] for record in done.records) > 30
    assert server.tokens == 240


def test_a_server_that_falls_behind_is_no_shorter_run(llm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack_builder.bench.load.MAX_OPEN", 5)
    done, server = measured(llm, Load(tokens=4, requests=60, rate=5000.0), rate=20.0)
    seen = figures(done)
    assert (seen.requests, seen.completed, seen.errors) == (6, 5, {"not sent": 1})
    assert "cannot keep up" in seen.messages[0]
    assert server.tokens == 20


def test_stop_keeps_what_was_measured(llm: ModuleType) -> None:
    """A request takes 0.1 s; two clients have sent five each and are in the sixth."""
    done, _ = measured(llm, Load(tokens=20, clients=2, requests=1000), rate=200.0, stop_after=0.55)
    seen = figures(done)
    assert done.interrupted
    assert seen.completed == 10
    assert seen.errors == {"cancelled": 2}


def test_full_load_ends_when_the_first_client_has_nothing_left(llm: ModuleType) -> None:
    """Two requests together, then one alone; each takes 0.1 s."""
    done, _ = measured(llm, Load(tokens=10, clients=2, requests=3), rate=100.0)
    assert sorted(record.ended for record in done.records) == pytest.approx([0.1, 0.1, 0.2])
    assert done.full == pytest.approx((0, 0.1))
    seen = figures(done)
    assert seen.throughput == pytest.approx(30 / 0.2)
    assert seen.full_throughput == pytest.approx(20 / 0.1)


@pytest.mark.parametrize("per_event", [1, 4])
def test_a_window_holds_what_was_made_in_it_however_large_the_events(per_event: int) -> None:
    """Eight clients at 10 tokens a second each, a little out of step: 80, wherever the window begins and ends."""
    pause = per_event / 10
    records = tuple(
        Record(
            number,
            started=number / 100,
            ended=number / 100 + 8,
            times=[number / 100 + pause * (event + 1) for event in range(80 // per_event)],
            counted=Counted(80),
        )
        for number in range(8)
    )
    for full in ((0.07, 8.0), (1.234, 5.678)):
        seen = figures(Run(Load(clients=8), records, full))
        assert seen.full_throughput == pytest.approx(80)


def test_quantiles_are_the_standard_librarys() -> None:
    values = sorted([3.0, 1.0, 4.0, 1.5, 9.2, 6.0, 5.3])
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert [quantile(values, share / 100) for share in (50, 90, 99)] == pytest.approx([cuts[49], cuts[89], cuts[98]])


def test_goodput_counts_failed_requests_against_the_server(llm: ModuleType) -> None:
    done, _ = measured(llm, Load(tokens=4, clients=1, requests=4), fail=["503"])
    assert figures(done, {"e2e": 10_000}).goodput is not None
    goodput = figures(done, {"e2e": 10_000}).goodput
    assert goodput is not None
    assert goodput.share == 0.75
    missed = figures(done, {"ttft": 1e-6}).goodput
    assert missed is not None
    assert missed.share == 0


def test_slo() -> None:
    assert parse_slo("ttft=500, tpot=20") == {"ttft": 500, "tpot": 20}
    for text in ("", "speed=1", "ttft", "ttft=-1", "ttft=nan"):
        with pytest.raises(UsageError):
            parse_slo(text)

"""Arms side by side: interleaved A B B A at each level, repeated where the answer is still open."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from stack_builder.bench import guards, outcome
from stack_builder.bench.arms import Arm
from stack_builder.bench.clocks import ClockWatch
from stack_builder.bench.compare import log_ratios
from stack_builder.bench.load import Load, Run, Stop, run
from stack_builder.bench.metrics import figures
from stack_builder.bench.pool import Pool
from stack_builder.bench.prompts import load_prompts
from stack_builder.bench.results import ArmResult, Results, RunResult, Settings, level_text
from stack_builder.bench.server import ServerEye, ServerFacts, Watch
from stack_builder.bench.statistics import Says, ratio
from stack_builder.bench.stream import Api
from stack_builder.bench.wire import Endpoint, ErrorKind, ExchangeError
from stack_builder.errors import MachineError
from stack_builder.progress import Progress, Task
from stack_builder.report.model import Json

Wanting = Callable[[Results, float], bool]
_WARM_SHARE = 8  # a warm-up asks for this part of the tokens


@dataclass(frozen=True, slots=True)
class Options:
    """How to go about it, beside what is measured.

    Attributes:
        one_at_a_time: arms cannot run together: each turn starts one, goes through all levels, and stops it.
        budget: seconds of wall time after which no repeat is added; None for no bound.
        patience: seconds without a whole event after which a request failed.
        api_key: for every arm.
        keep_cache: leave the server's prefix cache as it is between runs.
        model: name for the OpenAI interfaces; None asks ``/v1/models``.
        wanting: whether a level needs more rounds; None: where some arm's interval holds 1.
    """

    one_at_a_time: bool = False
    budget: float | None = None
    patience: float = 600.0
    api_key: str | None = None
    keep_cache: bool = False
    model: str | None = None
    wanting: Wanting | None = None


class CutShortError(MachineError):
    """A bench that could not go on; ``results`` holds what was measured before."""

    def __init__(self, cause: MachineError, results: Results) -> None:
        super().__init__(cause.what, where=cause.where, fix=cause.fix)
        self.results = results


@dataclass(slots=True)
class _Live:
    """An arm that is running now."""

    name: str
    pool: Pool
    eye: ServerEye
    facts: ServerFacts
    result: ArmResult
    model: str
    warmed: set[float] = field(default_factory=set)


Save = Callable[[Results], None]
_T = TypeVar("_T")


async def bench(
    arms: Sequence[Arm],
    settings: Settings,
    options: Options,
    *,
    progress: Progress,
    machine: Mapping[str, Json] | None = None,
    save: Save | None = None,
) -> Results:
    """Measure all arms.

    Args:
        arms: the baseline first.
        settings: what to measure.
        options: how.
        progress: told of every run.
        machine: what is known of this machine.
        save: called with all results so far after every run, so that nothing is lost to a crash.

    Returns:
        all runs, rejected ones included; ``partial`` after Ctrl-C.

    Raises:
        MachineError: an arm cannot be reached or started; :class:`CutShortError` if some runs were made before.
    """
    most = round(max(settings.levels)) if not settings.open_loop else 1
    count = max(most, 1) * (settings.requests or 64)
    prompts = load_prompts(settings.prompts, count, seed=settings.seed)
    with ClockWatch() as clocks:
        session = _Session(arms, settings, options, prompts, clocks, progress, dict(machine or {}), save)
        async with _ctrl_c(session.stop):
            await session.measure()
    return session.results()


@asynccontextmanager
async def _ctrl_c(stop: Stop) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.ask)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class _Session:
    def __init__(
        self,
        arms: Sequence[Arm],
        settings: Settings,
        options: Options,
        prompts: Sequence[str],
        clocks: ClockWatch,
        progress: Progress,
        machine: dict[str, Json],
        save: Save | None,
    ) -> None:
        self._arms, self._settings, self._options, self._prompts = arms, settings, options, prompts
        self._clocks, self._progress, self._machine, self._save = clocks, progress, machine, save
        self._began = time.monotonic()
        self._started = datetime.now(UTC)
        self._id = f"{self._started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        self._shown: dict[str, ArmResult] = {}
        self._runs: list[RunResult] = []
        self._task: Task
        self._broken = False
        self.stop = Stop()

    def results(self) -> Results:
        """Everything so far, runs of arms that may not be compared rejected."""
        arms = tuple(self._shown.get(arm.name, ArmResult(arm.name, "")) for arm in self._arms)
        runs = tuple(
            replace(run, rejected=run.rejected + guards.incomparable(arms, run.arm, run.level)) for run in self._runs
        )
        return Results(
            id=self._id,
            started=outcome.iso(self._started),
            ended=outcome.iso(datetime.now(UTC)),
            settings=self._settings,
            arms=arms,
            runs=runs,
            partial=self.stop.asked or self._broken,
            machine=self._machine,
        )

    async def measure(self) -> None:
        """Make all runs, or those before Ctrl-C."""
        try:
            await (self._by_turns() if self._options.one_at_a_time else self._together())
        except MachineError as error:
            if self.stop.asked:
                return  # Ctrl-C reaches a server that is being started as well
            if not self._runs:
                raise
            self._broken = True
            raise CutShortError(error, self.results()) from error

    async def _together(self) -> None:
        """All arms are up at once: two rounds of a level are A B B A, back to back."""
        live: list[_Live] = []
        try:
            for arm in self._arms:
                live.append(await self._start(arm))
            with self._progress.task("benching", self._planned(), unit="requests") as task:
                self._task = task
                for first in range(0, self._settings.rounds, 2):
                    for level in self._settings.levels:
                        await self._rounds(live, level, range(first, min(first + 2, self._settings.rounds)))
            if any(self._open(level) for level in self._settings.levels):
                await self._repeats(live)
        finally:
            for arm, running in zip(self._arms, live, strict=False):  # those that were started
                await self._end(arm, running)

    async def _repeats(self, live: Sequence[_Live]) -> None:
        """Two rounds more at each level that is still open, until none is, or the bounds are reached."""
        for first in range(self._settings.rounds, self._settings.max_rounds, 2):
            numbers = range(first, min(first + 2, self._settings.max_rounds))
            with self._progress.task("repeating what is open", unit="requests") as task:
                self._task = task
                for level in self._settings.levels:
                    if self._open(level) and not self._over():
                        await self._rounds(live, level, numbers)

    async def _by_turns(self) -> None:
        """One arm is up at a time: every turn goes through all levels, and turns go A B B A."""
        with self._progress.task("benching", self._planned(), unit="requests") as task:
            self._task = task
            for number in range(self._settings.rounds):
                await self._turns(number, self._settings.levels)
        for number in range(self._settings.rounds, self._settings.max_rounds):
            levels = [level for level in self._settings.levels if self._open(level)]
            if not levels or self._over():
                return
            with self._progress.task("repeating what is open", unit="requests") as task:
                self._task = task
                await self._turns(number, levels)

    async def _turns(self, number: int, levels: Sequence[float]) -> None:
        for arm in _order(self._arms, number):
            if not self.stop.asked:
                await self._turn(arm, number, levels)

    async def _turn(self, arm: Arm, number: int, levels: Sequence[float]) -> None:
        live = await self._start(arm)
        try:
            for level in levels:
                await self._rounds([live], level, range(number, number + 1))
        finally:
            await self._end(arm, live)

    def _planned(self) -> int | None:
        """Requests of all planned runs; None where time bounds them."""
        settings = self._settings
        if settings.requests is None:
            return None
        of_levels = sum(1 if settings.open_loop else round(level) for level in settings.levels)
        return len(self._arms) * settings.rounds * of_levels * settings.requests

    async def _rounds(self, live: Sequence[_Live], level: float, numbers: Sequence[int]) -> None:
        for number in numbers:
            for arm in _order(live, number):
                if self.stop.asked:
                    return
                await self._one(arm, level, number)

    async def _one(self, arm: _Live, level: float, number: int) -> None:
        """Run one arm once, judge it, and keep it."""
        load = self._load(arm, level)
        prompts = _rotated(self._prompts, number * load.requests)
        if level not in arm.warmed:
            await run(arm.pool, _warm_up(load), prompts, api_key=self._options.api_key, stop=self.stop)
            arm.warmed.add(level)
        if self.stop.asked:
            return
        if not self._options.keep_cache:
            await arm.eye.flush_cache()
        label = f"{level_text(level)} {'req/s' if load.rate else 'clients'}, {arm.name}, round {number + 1}"
        at, cpu = datetime.now(UTC), time.process_time()
        async with arm.eye.watching() as watch:
            done = await run(
                arm.pool,
                load,
                prompts,
                api_key=self._options.api_key,
                stop=self.stop,
                tick=lambda _record: self._task.advance(1),
            )
        seen = self._seen(arm, load, done, watch, time.process_time() - cpu)
        result = outcome.of_run(seen, arm=arm.name, level=level, number=number, order=len(self._runs), at=at)
        if done.interrupted:
            result = outcome.cut(result, alone=len(self._arms) == 1)
        self._runs.append(result)
        self._progress.note(outcome.line(label, result))
        if self._save is not None:
            self._save(self.results())

    def _seen(self, arm: _Live, load: Load, done: Run, watch: Watch, cpu: float) -> guards.Seen:
        begin = min((record.started for record in done.records), default=0.0)
        end = max((record.ended for record in done.records), default=0.0)
        return guards.Seen(
            clients=None if load.rate else load.clients,
            tokens=load.tokens,
            figures=figures(done, self._settings.slo),
            facts=arm.facts,
            watch=watch,
            clocks=self._clocks.between(begin, end),
            cpu=cpu,
            interrupted=done.interrupted,
        )

    def _load(self, arm: _Live, level: float) -> Load:
        settings = self._settings
        clients = 1 if settings.open_loop else round(level)
        each = settings.requests or 1
        return Load(
            api=Api(settings.api),
            model=arm.model,
            tokens=settings.tokens,
            clients=clients,
            requests=each if settings.open_loop else each * clients,
            seconds=settings.seconds,
            rate=level if settings.open_loop else None,
            seed=settings.seed,
            temperature=settings.temperature,
        )

    async def _start(self, arm: Arm) -> _Live:
        url, receipt = await asyncio.to_thread(arm.start)
        try:
            return await self._look_at(arm.name, url, receipt)
        except BaseException:
            await asyncio.to_thread(arm.stop)
            raise

    async def _look_at(self, name: str, url: str, receipt: Mapping[str, Json]) -> _Live:
        """Ask a server that is up what it is."""
        fresh = self._settings.connections == "fresh"
        pool = Pool(Endpoint.of(url), patience=self._options.patience, fresh=fresh)
        eye = ServerEye(
            Pool(Endpoint.of(url), patience=min(30.0, self._options.patience)), api_key=self._options.api_key
        )
        await _reach(pool, name)
        facts = await eye.facts()
        model = self._options.model or await eye.model() or "default"
        self._shown[name] = ArmResult(name, url, facts, receipt)
        what = f"SGLang {facts.version}" if facts.version else "server"
        how = "adaptive" if facts.adaptive else str(facts.arguments.get("speculative_algorithm") or "no speculation")
        self._progress.note(f"{name}: {what} at {url}, {how}, at most {facts.limit or 'unknown'} running requests")
        return _Live(name, pool, eye, facts, self._shown[name], model)

    async def _end(self, arm: Arm, live: _Live) -> None:
        live.pool.close()
        live.eye.close()
        await asyncio.sleep(0)  # lets the loop close the sockets
        await asyncio.to_thread(arm.stop)

    def _open(self, level: float) -> bool:
        """Whether a level needs more rounds."""
        return (self._options.wanting or straddles)(self.results(), level)

    def _over(self) -> bool:
        budget = self._options.budget
        return self.stop.asked or (budget is not None and time.monotonic() - self._began > budget)


def straddles(results: Results, level: float) -> bool:
    """Whether some arm's interval at a level holds 1: then it is not told apart from the baseline."""
    found = (log_ratios(results, arm.name, level) for arm in results.arms[1:])
    return any(ratio(logs, seed=results.settings.seed).says is Says.OPEN for logs in found if logs)


async def _reach(pool: Pool, name: str) -> None:
    """Fail before anything is measured, rather than measure nobody."""
    try:
        (await pool.connect()).close()
        await asyncio.sleep(0)
    except ExchangeError as error:
        where = f"{name} at {pool.endpoint.host}:{pool.endpoint.port}"
        fix = "start the server first"
        if error.kind is ErrorKind.TLS:
            fix = (
                "name the authority's certificate with SSL_CERT_FILE=FILE.pem, or give http:// for a server without TLS"
            )
        raise MachineError(f"cannot be reached: {error}", where=where, fix=fix) from error


def _order(arms: Sequence[_T], number: int) -> Iterator[_T]:
    """Forwards in even rounds, backwards in odd ones: a drift in time hits all arms alike."""
    return iter(arms) if number % 2 == 0 else reversed(arms)


def _rotated(prompts: Sequence[str], by: int) -> Sequence[str]:
    """Each round sends other prompts, every arm of a round the same."""
    start = by % len(prompts)
    return [*prompts[start:], *prompts[:start]]


def _warm_up(load: Load) -> Load:
    return replace(load, tokens=max(load.tokens // _WARM_SHARE, 4), requests=load.clients, rate=None, seconds=None)

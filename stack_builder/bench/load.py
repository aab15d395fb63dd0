"""The load itself: N clients that each wait for their answer (closed loop), or arrivals at a rate (open loop)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from stack_builder.bench.pool import Pool
from stack_builder.bench.stream import OK, Api, Counted, EventStream, body
from stack_builder.bench.wire import ErrorKind, ExchangeError

MAX_OPEN = 10_000  # requests in flight of an open loop; beyond that the server is lost and so is the measurement

Tick = Callable[["Record"], None]


@dataclass(frozen=True, slots=True)
class Load:
    """How much to ask, and how.

    Attributes:
        api: which interface.
        model: name sent to the OpenAI interfaces; SGLang serves any.
        tokens: output tokens of each request, exactly (``ignore_eos``).
        clients: of the closed loop.
        requests: how many in all.
        seconds: if given, clients stop asking after this time instead.
        rate: requests per second of an open loop (Poisson arrivals); None for the closed loop.
        seed: of the arrivals.
        temperature: 0 is greedy, which both arms of a pair answer alike.
    """

    api: Api = Api.COMPLETIONS
    model: str = "default"
    tokens: int = 256
    clients: int = 1
    requests: int = 1
    seconds: float | None = None
    rate: float | None = None
    seed: int = 0
    temperature: float = 0.0


@dataclass(slots=True)
class Record:
    """One request. Times are seconds of ``perf_counter``.

    Attributes:
        number: its place in the order of sending; names its prompt.
        started: when it was sent.
        ended: when its answer was whole, or it failed.
        times: of events with content.
        counted: the server's count; None if it failed.
        error: class and text if it failed.
    """

    number: int
    started: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    counted: Counted | None = None
    error: tuple[ErrorKind, str] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one run.

    Attributes:
        load: what was asked.
        records: in the order of sending, failed ones included.
        full: from when to when every client was busy; for an open loop, from the first to the last arrival.
        interrupted: whether it was cut short.
    """

    load: Load
    records: tuple[Record, ...]
    full: tuple[float, float]
    interrupted: bool = False


class Stop:
    """Set by Ctrl-C: no more requests are sent, those in flight are given up, what was measured stays."""

    def __init__(self) -> None:
        self.asked = False
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self) -> None:
        """Stop now."""
        self.asked = True
        for task in self._tasks:
            task.cancel()

    def watch(self, task: asyncio.Task[None]) -> None:
        """Cancel ``task`` when asked."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def run(
    pool: Pool,
    load: Load,
    prompts: Sequence[str],
    *,
    api_key: str | None = None,
    stop: Stop | None = None,
    tick: Tick | None = None,
) -> Run:
    """Run one load.

    Args:
        pool: connections to the server.
        load: what to ask.
        prompts: request *n* sends prompt *n* modulo their number, in every arm alike.
        api_key: sent as a bearer token.
        stop: lets Ctrl-C end it.
        tick: called at the end of every request.
    """
    generator = _Generator(pool, load, prompts, api_key, stop or Stop(), tick)
    if load.rate is None:
        await generator.closed()
    else:
        await generator.open(load.rate)
    return generator.result()


class _Generator:
    def __init__(
        self,
        pool: Pool,
        load: Load,
        prompts: Sequence[str],
        api_key: str | None,
        stop: Stop,
        tick: Tick | None,
    ) -> None:
        self._pool, self._load, self._stop, self._tick = pool, load, stop, tick
        self._messages = [
            pool.endpoint.request(
                "POST",
                load.api.path,
                body(load.api, prompt, tokens=load.tokens, model=load.model, temperature=load.temperature),
                api_key=api_key,
            )
            for prompt in prompts[: load.requests if load.seconds is None else None]
        ]
        self._records: list[Record] = []
        self._ended = 0
        self._numbers = self._count()
        self._all_busy = 0.0
        self._first_idle = float("inf")
        self._deadline = float("inf")

    def _count(self) -> Iterator[int]:
        number = 0
        while not self._stop.asked and perf_counter() < self._deadline:
            if self._load.seconds is None and number >= self._load.requests:
                return
            yield number
            number += 1

    async def closed(self) -> None:
        """Run N clients, each with one request in flight."""
        if self._load.seconds is not None:
            self._deadline = perf_counter() + self._load.seconds
        tasks = [asyncio.create_task(self._client()) for _ in range(self._load.clients)]
        await self._finish(tasks)

    async def open(self, rate: float) -> None:
        """Send at random times, whatever is still in flight."""
        if self._load.seconds is not None:
            self._deadline = perf_counter() + self._load.seconds
        chance = random.Random(self._load.seed)  # noqa: S311 - arrivals, not secrets
        tasks: list[asyncio.Task[None]] = []
        due = perf_counter()
        for number in self._numbers:
            await asyncio.sleep(max(0.0, due - perf_counter()))
            if self._stop.asked:
                break
            if len(tasks) - self._ended >= MAX_OPEN:
                self._give_up(number)
                break
            task = asyncio.create_task(self._one(number))
            self._stop.watch(task)
            tasks.append(task)
            due += chance.expovariate(rate)
        self._first_idle = perf_counter()
        await self._finish(tasks)

    def _give_up(self, number: int) -> None:
        """Keep that a server fell behind for good, so that its run is not taken for a shorter one."""
        now = perf_counter()
        error = (ErrorKind.OVERRUN, f"{MAX_OPEN} requests were in flight: the server cannot keep up with the rate")
        self._records.append(Record(number, now, now, error=error))

    async def _finish(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            self._stop.watch(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _client(self) -> None:
        for number in self._numbers:
            await self._one(number)
        self._first_idle = min(self._first_idle, perf_counter())

    async def _one(self, number: int) -> None:
        stream = EventStream(self._load.api)
        record = Record(number, perf_counter(), times=stream.times)
        self._records.append(record)
        if len(self._records) == self._load.clients:
            self._all_busy = record.started
        try:
            status = await self._pool.send(self._messages[number % len(self._messages)], stream)
            record.ended = perf_counter()
            if status != OK:
                text = " ".join(stream.refusal.decode("utf-8", errors="replace").split())
                raise ExchangeError(ErrorKind.HTTP, f"{status}: {text}")
            record.counted = stream.counted()
        except ExchangeError as error:
            record.ended = record.ended or perf_counter()
            record.error = (error.kind, str(error))
            if error.kind in (ErrorKind.REFUSED, ErrorKind.CONNECT, ErrorKind.TLS):
                await asyncio.sleep(0.05)  # a dead server must not be asked ten thousand times a second
        except asyncio.CancelledError:
            record.ended = perf_counter()
            record.error = (ErrorKind.CANCELLED, "interrupted")
            raise
        finally:
            self._ended += 1
            if self._tick is not None:
                self._tick(record)

    def result(self) -> Run:
        """Gather what was measured."""
        ended = max((record.ended for record in self._records), default=0.0)
        first = min((record.started for record in self._records), default=0.0)
        begin = self._all_busy if self._load.rate is None and self._all_busy else first
        whole = max((record.ended for record in self._records if record.counted), default=ended)
        end = min(self._first_idle, whole if self._stop.asked else ended)  # what was given up has no count
        full = (begin, end) if end > begin else (first, ended)
        return Run(self._load, tuple(self._records), full, self._stop.asked)

"""Guards: what makes a run unfit to count. Pure functions of what was seen; ids from ``checks/rules/bench.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack_builder.bench.clocks import POWER_CAP, Clock, throttles
from stack_builder.bench.metrics import Figures
from stack_builder.bench.results import ArmResult, Reason
from stack_builder.bench.server import ServerFacts, Watch
from stack_builder.bench.wire import ErrorKind
from stack_builder.diagnose.running import HARDLY_RIGHT

_QUEUE = 0.1  # waiting requests per running one that are no mere transient below the limit
_BUSY = 0.9  # share of one core above which the client may be what was measured
_OFF = 0.05  # share by which the mean output length may differ from what was asked
_EAGLE_LIMIT = 48  # max_running_requests that SGLang sets for EAGLE where none is given
_SHORT = 0.5  # share of a run below which the time of full load is called short


@dataclass(frozen=True, slots=True)
class Seen:
    """One run from all sides.

    Attributes:
        clients: of the closed loop; None for an open one.
        tokens: asked of each request.
        figures: what the clients saw.
        facts: of the server.
        watch: of the server during the run.
        clocks: of the GPU during the run.
        cpu: seconds of processor time the client itself used.
        interrupted: by Ctrl-C, perhaps before any request was sent.
    """

    clients: int | None
    tokens: int
    figures: Figures
    facts: ServerFacts
    watch: Watch
    clocks: tuple[Clock, ...] = ()
    cpu: float = 0.0
    interrupted: bool = False

    @property
    def accept_length(self) -> float | None:
        """From the requests themselves, else from the server's counters."""
        return self.figures.accept_length or self.watch.accept_length


def judge(seen: Seen) -> tuple[Reason, ...]:
    """Give the reasons for which a run does not count."""
    figures, reasons = seen.figures, []
    failed = {kind: count for kind, count in figures.errors.items() if kind != ErrorKind.CANCELLED}
    if failed:
        counts = ", ".join(f"{count} {kind}" for kind, count in failed.items())
        message = f" ({figures.messages[0]})" if figures.messages else ""
        reasons.append(Reason("BENCH001", f"{sum(failed.values())} of {figures.requests} requests: {counts}{message}"))
    elif not figures.completed and not seen.interrupted:
        reasons.append(Reason("BENCH001", "no request completed"))
    if seen.watch.retracted:
        reasons.append(Reason("BENCH002", f"{seen.watch.retracted:g} requests were retracted"))
    if figures.completed and abs(figures.tokens / figures.completed / seen.tokens - 1) > _OFF:
        mean = figures.tokens / figures.completed
        reasons.append(Reason("BENCH010", f"{mean:.0f} tokens a request instead of {seen.tokens}"))
    # an adaptive server may rightly not draft: its acceptance is no proof either way
    length = seen.accept_length
    if seen.facts.speculates and not seen.facts.adaptive and length is not None and length < HARDLY_RIGHT:
        reasons.append(Reason("BENCH004", f"accept length {length:.2f}"))
    throttled = throttles(seen.clocks)
    if throttled:
        reasons.append(Reason("BENCH005", ", ".join(throttled)))
    queue = _queue(seen)
    if queue is not None:
        reasons.append(queue)
    return tuple(reasons)


def notes(seen: Seen) -> tuple[Reason, ...]:
    """What to know of a run that counts."""
    found = []
    limit = seen.facts.limit
    if seen.clients is not None and limit is not None and seen.clients > limit:
        found.append(
            Reason("BENCH007", f"{seen.clients} clients, but the server runs at most {limit} requests at once")
        )
    if seen.figures.seconds and seen.cpu / seen.figures.seconds > _BUSY:
        found.append(Reason("BENCH009", f"the client used {seen.cpu / seen.figures.seconds:.0%} of one core"))
    if any(clock.reasons & POWER_CAP for clock in seen.clocks):
        found.append(Reason("BENCH011", "the power cap held the clocks down"))
    full, whole = seen.figures.full_seconds, seen.figures.seconds
    if seen.clients is not None and full < _SHORT * whole:
        found.append(Reason("BENCH014", f"every client was busy for {full:.2f} s of {whole:.2f} s"))
    counted = seen.watch.tokens
    if counted is not None and not seen.figures.errors and counted != seen.figures.tokens:
        found.append(Reason("BENCH013", f"answers hold {seen.figures.tokens} tokens, the server counted {counted:.0f}"))
    unknown = _unknown(seen)
    if unknown:
        found.append(Reason("BENCH008", f"the server does not tell {', '.join(unknown)}"))
    return tuple(found)


def incomparable(arms: Sequence[ArmResult], arm: str, level: float) -> tuple[Reason, ...]:
    """Why an arm may not be compared with the baseline, the first, at a level: by its limit, one of them queues."""
    base = arms[0].facts.limit
    limit = next(found.facts.limit for found in arms if found.name == arm)
    if base is None or limit is None or base == limit or level <= min(base, limit):
        return ()
    return (Reason("BENCH003", f"{arm} runs at most {limit} requests at once, {arms[0].name} {base}"),)


def capped(limit: int | None, levels: Sequence[float], throughput: Mapping[float, float]) -> str | None:
    """Say where a flat curve comes from, if it is flat from a limit of running requests on.

    Args:
        limit: in force; None if unknown, then SGLang's own for EAGLE is tried.
        levels: clients measured.
        throughput: tokens per second by level.
    """
    cap = _EAGLE_LIMIT if limit is None else limit
    above = [throughput[level] for level in levels if level > cap and level in throughput]
    below = [throughput[level] for level in levels if level <= cap and level in throughput]
    if len(above) < 2 or not below or max(above) > 1.03 * min(above):
        return None
    known = "the limit in force" if limit is not None else "what SGLang sets for EAGLE without --max-running-requests"
    return (
        f"throughput is flat from {above[0]:.0f} to {above[-1]:.0f} tok/s above {cap} clients; likely cause: a cap of "
        f"{cap} running requests ({known}), and not the GPU"
    )


def _queue(seen: Seen) -> Reason | None:
    limit = seen.facts.limit
    if seen.clients is None or limit is None or seen.clients > limit or len(seen.watch.waiting) < 4:
        return None
    waiting, running = sum(seen.watch.waiting), sum(seen.watch.running)
    if waiting <= _QUEUE * max(running, 1):
        return None
    detail = f"{waiting / len(seen.watch.waiting):.1f} requests waited on average, below the limit of {limit}"
    return Reason("BENCH006", detail)


def _unknown(seen: Seen) -> tuple[str, ...]:
    unknown = []
    if seen.facts.limit is None:
        unknown.append("its limit of running requests")
    if seen.watch.retracted is None:
        unknown.append("retracted requests")
    if seen.facts.speculates and seen.accept_length is None:
        unknown.append("its accept length")
    return tuple(unknown)

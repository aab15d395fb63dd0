"""From requests to figures: percentiles, throughput over the time of full load, goodput, acceptance.

Definitions are those of SGLang's ``bench_serving`` where it has one: TTFT from sending to the first content, TPOT =
(end to end - TTFT) / (tokens - 1) per request, ITL between successive events with content, percentiles interpolated
linearly, failed requests left out of all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack_builder.bench.load import Record, Run
from stack_builder.bench.statistics import quantile
from stack_builder.errors import UsageError

QUANTILES = (0.5, 0.9, 0.99)
_MESSAGES = 3  # error texts kept of each class
_SLO_KEYS = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds: mean and quantiles of one latency."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """How much of the load met the objective.

    Attributes:
        share: of all requests, failed ones included; 0 to 1.
        requests_per_s: that met it.
    """

    share: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run measured.

    Attributes:
        requests: sent.
        completed: with a whole answer and a count.
        errors: failed requests by class.
        messages: a few error texts.
        seconds: from the first request to the end of the last.
        prompt_tokens: of completed requests, by the server's count.
        tokens: output tokens of completed requests, by the server's count.
        throughput: output tokens per second over ``seconds``.
        full_seconds: how long every client was busy.
        full_throughput: output tokens per second over that time.
        ttft, tpot, itl, e2e: latencies; None where no request gave one.
        goodput: None without an objective.
        accept_length: tokens per verify pass, from the requests' own counts; None where not told.
    """

    requests: int
    completed: int
    errors: Mapping[str, int]
    messages: tuple[str, ...]
    seconds: float
    prompt_tokens: int
    tokens: int
    throughput: float
    full_seconds: float
    full_throughput: float
    ttft: Latency | None
    tpot: Latency | None
    itl: Latency | None
    e2e: Latency | None
    goodput: Goodput | None
    accept_length: float | None


def figures(run: Run, slo: Mapping[str, float] | None = None) -> Figures:
    """Compute the figures of a run.

    Args:
        run: its requests.
        slo: an upper bound in milliseconds for ``ttft``, ``tpot``, ``itl`` (mean of the request) or ``e2e``.
    """
    good = [record for record in run.records if record.counted is not None]
    seconds = _span(run.records)
    tokens = sum(record.counted.tokens for record in good if record.counted)
    begin, end = run.full
    return Figures(
        requests=len(run.records),
        completed=len(good),
        errors=dict(Counter(record.error[0].value for record in run.records if record.error)),
        messages=_messages(run.records),
        seconds=seconds,
        prompt_tokens=sum(record.counted.prompt_tokens or 0 for record in good if record.counted),
        tokens=tokens,
        throughput=tokens / seconds if seconds else 0.0,
        full_seconds=end - begin,
        full_throughput=_tokens_between(good, begin, end) / (end - begin) if end > begin else 0.0,
        ttft=_latency([_ttft(record) for record in good if record.times]),
        tpot=_latency([value for record in good if (value := _tpot(record)) is not None]),
        itl=_latency([gap for record in good for gap in _gaps(record)]),
        e2e=_latency([record.ended - record.started for record in good]),
        goodput=None if not slo else _goodput(run.records, slo, seconds),
        accept_length=_accept_length(good),
    )


def parse_slo(text: str) -> dict[str, float]:
    """Read ``ttft=500,tpot=20`` (milliseconds).

    Raises:
        UsageError: an unknown name, or no positive number.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in _SLO_KEYS:
            raise UsageError(f"'{name}' is no latency", where="--slo", fix=f"use {', '.join(_SLO_KEYS)}")
        try:
            bounds[name] = float(value)
        except ValueError:
            bounds[name] = 0.0
        if not 0 < bounds[name] < float("inf"):
            raise UsageError(f"{name} is not a positive number of milliseconds", where="--slo")
    return bounds


def _latency(seconds: Sequence[float]) -> Latency | None:
    if not seconds:
        return None
    ordered = sorted(value * 1000 for value in seconds)
    return Latency(sum(ordered) / len(ordered), *(quantile(ordered, share) for share in QUANTILES))


def _span(records: Sequence[Record]) -> float:
    if not records:
        return 0.0
    return max(record.ended for record in records) - min(record.started for record in records)


def _tokens_between(records: Sequence[Record], begin: float, end: float) -> float:
    """Tokens made in a window: each event of a request carries the same part of its count.

    An event's tokens were in the making since the event before it, and of one across the window's edge only the part
    inside counts. By arrival alone, a window that ends with one client's last event would miss the last event of all
    others: few tokens without speculation, several times as many with it, and so a ratio that is too low.
    """
    return sum(
        record.counted.tokens * (_made(record, end) - _made(record, begin)) / len(record.times)
        for record in records
        if record.counted and record.times
    )


def _made(record: Record, time: float) -> float:
    """Events that were made by a time; a fraction of the one that was under way."""
    place = bisect_right(record.times, time)
    if place == len(record.times):
        return place
    before = record.times[place - 1] if place else record.started
    return place + max(0.0, time - before) / (record.times[place] - before)


def _ttft(record: Record) -> float:
    return record.times[0] - record.started


def _tpot(record: Record) -> float | None:
    if record.counted is None or record.counted.tokens < 2 or not record.times:
        return None
    return (record.ended - record.times[0]) / (record.counted.tokens - 1)


def _gaps(record: Record) -> list[float]:
    return [later - earlier for earlier, later in zip(record.times, record.times[1:], strict=False)]


def _goodput(records: Sequence[Record], slo: Mapping[str, float], seconds: float) -> Goodput:
    met = sum(_meets(record, slo) for record in records)
    return Goodput(met / len(records) if records else 0.0, met / seconds if seconds else 0.0)


def _meets(record: Record, slo: Mapping[str, float]) -> bool:
    if record.counted is None or not record.times:
        return False
    gaps = _gaps(record)
    values = {
        "ttft": _ttft(record),
        "tpot": _tpot(record) or 0.0,
        "itl": sum(gaps) / len(gaps) if gaps else 0.0,
        "e2e": record.ended - record.started,
    }
    return all(values[name] * 1000 <= bound for name, bound in slo.items())


def _accept_length(records: Sequence[Record]) -> float | None:
    told = [record.counted for record in records if record.counted and record.counted.verify_steps]
    steps = sum(counted.verify_steps or 0 for counted in told)
    return sum(counted.tokens for counted in told) / steps if steps else None


def _messages(records: Sequence[Record]) -> tuple[str, ...]:
    seen: dict[str, list[str]] = {}
    for record in records:
        if record.error:
            texts = seen.setdefault(record.error[0].value, [])
            if record.error[1] not in texts and len(texts) < _MESSAGES:
                texts.append(record.error[1])
    return tuple(f"{kind}: {text}" for kind, texts in seen.items() for text in texts)

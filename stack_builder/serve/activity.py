"""Collecting what a running server shows: arguments, loads, metrics, log lines, and a short series of requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stack_builder import resources
from stack_builder.diagnose.running import Acceptance, Figures, RunningFacts, Source, State, features
from stack_builder.errors import MachineError
from stack_builder.report.model import Json
from stack_builder.serve.client import ServerClient
from stack_builder.serve.plan import LaunchPlan

SERIES_TOKENS = 64  # per prompt: enough for an average, a second or two on any model
_FIRST_TIMEOUT = 300.0  # seconds; the first request may compile kernels (80 s were seen for sampling)
MAX_LOG = 32 << 20  # bytes; a start writes some 100 kB
_MAX_LINE = 2000  # characters of a log line that are matched
_POLL = 0.1  # seconds between two looks at /v1/loads; SGLang answers from its scheduler in about a millisecond

_T = TypeVar("_T")


def collect(client: ServerClient, plan: LaunchPlan, log: Path) -> RunningFacts:
    """Ask the server, send it the series, and read its log.

    Only the series has to succeed: a ready server generates. Any other source that does not answer is noted as missing.

    Raises:
        MachineError: a request of the series fails, or the log cannot be read.
    """
    missing: dict[Source, str] = {}
    with _watched(client) as loads:
        acceptance = measure_acceptance(client)
    if not loads.seen:
        missing[Source.LOADS] = loads.error
    metrics: Mapping[str, tuple[float, ...]] = _asked(client.metrics, Source.METRICS, missing, {})
    if Source.METRICS in missing and "--enable-metrics" not in plan.server_arguments:
        missing[Source.METRICS] = "not served without --enable-metrics"
    info: Mapping[str, Any] = _asked(client.server_info, Source.SERVER_INFO, missing, {})
    states = _objects(info.get("internal_states"))
    return RunningFacts(
        arguments=plan.server_arguments,
        environment=plan.env,
        resolved={key: value for key, value in info.items() if key not in ("internal_states", "api_key")},
        limit=_limit(states, info),
        marks=marks(log),
        acceptance=acceptance,
        metrics=metrics,
        figures=_figures(loads, metrics, states, acceptance),
        missing=missing,
    )


def measure_acceptance(client: ServerClient) -> Acceptance:
    """Run the built-in prompts once, greedily, one after the other."""
    generations = [
        client.generate(prompt, max_new_tokens=SERIES_TOKENS, timeout=_FIRST_TIMEOUT) for prompt in prompts()
    ]
    return Acceptance(
        requests=len(generations),
        tokens=sum(generation.tokens for generation in generations),
        verify_steps=sum(generation.verify_steps or 0 for generation in generations),
    )


def prompts() -> tuple[str, ...]:
    """Built-in prompts of real text, one a paragraph (``checks/server/prompts.txt``)."""
    text = (resources.checks() / "server" / "prompts.txt").read_text(encoding="utf-8")
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


def marks(log: Path) -> Mapping[str, tuple[State, str]]:
    """What the log says of each feature; a line against it outweighs one for it."""
    found: dict[str, tuple[State, str]] = {}
    try:
        with log.open("rb") as file:
            # the server goes on writing: only what stands there now, and of a flood its beginning, where set-up is told
            head = file.read(min(log.stat().st_size, MAX_LOG))
    except OSError as error:
        raise MachineError(error.strerror or str(error), where=log) from error
    _scan(head.decode("utf-8", errors="replace").splitlines(), found)
    return found


@dataclass(slots=True)
class _Loads:
    """What ``/v1/loads`` gave while the series ran: the ranks of each answer."""

    seen: list[Sequence[Mapping[str, Any]]] = field(default_factory=list)
    error: str = "did not answer in time"

    def look(self, client: ServerClient) -> None:
        try:
            ranks = _objects(client.loads().get("loads"))
        except MachineError as error:
            self.error = error.what
            return
        if ranks:
            self.seen.append(ranks)
        else:
            self.error = "answered without loads"


@contextmanager
def _watched(client: ServerClient) -> Iterator[_Loads]:
    """Look at the loads again and again, and once more at the end."""
    loads, done = _Loads(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL):
            loads.look(client)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield loads
    finally:
        done.set()
        watcher.join()
    loads.look(client)


def _figures(
    loads: _Loads,
    metrics: Mapping[str, tuple[float, ...]],
    states: Sequence[Mapping[str, Any]],
    acceptance: Acceptance,
) -> Figures:
    last = loads.seen[-1] if loads.seen else ()
    lengths = {
        Source.REQUESTS: acceptance.length,
        Source.LOADS: _mean(each.get("accept_length") for each in _objects([rank.get("speculative") for rank in last])),
        Source.METRICS: _mean(metrics.get("sglang:spec_accept_length", ())) or None,  # 0 on a baseline
        Source.SERVER_INFO: _mean(state.get("avg_spec_accept_length") for state in states),
    }
    throughput = {
        # 0 where it idles, or the series was over before SGLang counted
        Source.LOADS: max((_sum("gen_throughput", ranks) for ranks in loads.seen), default=0.0) or None,
        Source.METRICS: sum(metrics.get("sglang:gen_throughput", ())) or None,
    }
    running = {Source.LOADS: int(max(_sum("num_running_reqs", ranks) for ranks in loads.seen))} if loads.seen else {}
    return Figures(_known(lengths), running, _known(throughput))


def _asked(ask: Callable[[], _T], source: Source, missing: dict[Source, str], otherwise: _T) -> _T:
    try:
        return ask()
    except MachineError as error:
        missing[source] = error.what
        return otherwise


def _objects(value: Json) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _sum(key: str, ranks: Iterable[Mapping[str, Any]]) -> float:
    return sum((float(rank[key]) for rank in ranks if isinstance(rank.get(key), int | float)), 0.0)


def _mean(values: Iterable[Json]) -> float | None:
    numbers = [value for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


def _known(values: Mapping[Source, float | None]) -> dict[Source, float]:
    return {source: value for source, value in values.items() if value is not None}


def _scan(lines: Iterable[str], found: dict[str, tuple[State, str]]) -> None:
    for whole in lines:
        line = whole[:_MAX_LINE].rstrip()
        for feature in features():
            if any(pattern.search(line) for pattern in feature.inactive):
                found[feature.id] = (State.INACTIVE, line)
            elif feature.id not in found and any(pattern.search(line) for pattern in feature.active):
                found[feature.id] = (State.ACTIVE, line)


def _limit(states: Sequence[Mapping[str, Any]], info: Mapping[str, Json]) -> int | None:
    candidates = [state.get("effective_max_running_requests_per_dp") for state in states[:1]]
    return next((value for value in (*candidates, info.get("max_running_requests")) if isinstance(value, int)), None)

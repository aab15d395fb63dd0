"""Requested against active: what a running server shows of the features its launch line asked for.

Facts are collected by :mod:`stack_builder.serve.activity`; this module only judges them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import pairwise

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.report import Finding, Skipped
from stack_builder.report.model import Json
from stack_builder.sglang.argv import value_of

HARDLY_RIGHT = 1.05  # accept length below which drafting yields nothing; facts of peers' method rules
_SPECULATION = "speculation"
# their own rows or rules, or names that a server may rewrite: paths, addresses
_ELSEWHERE = frozenset(
    {"--speculative-algorithm", "--max-running-requests", "--model-path", "--host", "--port", "--api-key"}
    | {"--speculative-draft-model-path", "--speculative-adaptive-config"}
)
_DEFAULT_LIMIT = 48  # SGLang's own max_running_requests with EAGLE, every version (server_args.py)


class State(StrEnum):
    """What is known of a feature that was asked for."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    UNPROVED = "unproved"


class Source(StrEnum):
    """Who said so."""

    SERVER_INFO = "/server_info"
    LOADS = "/v1/loads"
    METRICS = "/metrics"
    LOG = "log"
    REQUESTS = "requests"
    LAUNCH = "launch line"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a short series of requests showed.

    Attributes:
        requests: how many.
        tokens: completion tokens in all, by the server's count.
        verify_steps: verify passes in all; 0 where the server does not speculate.
    """

    requests: int
    tokens: int
    verify_steps: int

    @property
    def length(self) -> float | None:
        """Tokens per verify pass; None without speculation."""
        return self.tokens / self.verify_steps if self.verify_steps else None


@dataclass(frozen=True, slots=True)
class Figures:
    """The same figures by whoever gives them, during or at the end of the series of requests.

    Attributes:
        accept_length: tokens per verify pass: of the series, since the start, or of the last interval.
        running: the largest batch that was seen.
        throughput: generated tokens per second.
    """

    accept_length: Mapping[Source, float] = field(default_factory=dict)
    running: Mapping[Source, int] = field(default_factory=dict)
    throughput: Mapping[Source, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningFacts:
    """What was seen of one running server.

    Attributes:
        arguments: its launch arguments, the words after ``sglang.launch_server``.
        environment: variables that were set for it.
        resolved: ``/server_info`` without ``internal_states``.
        limit: effective ``max_running_requests``; None where not reported.
        marks: ids of :func:`features` with the log line that speaks for or against each.
        acceptance: of the request series; None where it was not run.
        metrics: Prometheus samples by name, one for each set of labels; empty where there are none.
        figures: batch, throughput and acceptance, by source.
        missing: sources that did not answer, and why.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    resolved: Mapping[str, Json]
    limit: int | None
    marks: Mapping[str, tuple[State, str]]
    acceptance: Acceptance | None
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    missing: Mapping[Source, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of ``checks/server/features.toml``."""

    id: str
    title: str
    active: tuple[re.Pattern[str], ...]
    inactive: tuple[re.Pattern[str], ...]
    silence: str
    instead: str
    between_gpus: bool
    options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    argument: str | None = None
    metric: str | None = None
    unless: str | None = None

    def requested_by(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
        """The option or variable that asks for it, ``default`` for what is on unless refused, else None."""
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        for option in self.options:
            if option in given:
                return option
        if self.unless is not None:
            return None if self.unless in given else "default"
        return next((f"{name}=1" for name in self.environment if environment.get(name) in ("1", "true")), None)


@dataclass(frozen=True, slots=True)
class Activity:
    """One feature or option, requested against active.

    Attributes:
        id: of the feature, or the option's name in ``/server_info``.
        title: for people.
        requested: the option, variable or default that asks for it.
        state: what is known.
        source: who said so.
        evidence: what it said.
        instead: what to do where it is inactive.
    """

    id: str
    title: str
    requested: str
    state: State
    source: Source
    evidence: str
    instead: str | None = None


@cache
def features() -> tuple[Feature, ...]:
    """The features that can be told apart in a log."""
    rows = resources.table("server", "features.toml")["feature"]
    return tuple(
        Feature(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            | {side: tuple(re.compile(pattern) for pattern in row[side]) for side in ("active", "inactive")}
        )
        for row in rows
    )


def activity(facts: RunningFacts) -> tuple[Activity, ...]:
    """One row for each feature that the launch line asks for, and for each of its values that the server resolved."""
    rows = [] if (row := _speculation(facts)) is None else [row]
    for feature in features():
        requested = feature.requested_by(facts.arguments, facts.environment)
        if requested is not None:
            state, source, evidence = _state(feature, facts)
            rows.append(Activity(feature.id, feature.title, requested, state, source, evidence, feature.instead))
    return (*rows, *_options(facts))


def judge_running(facts: RunningFacts) -> tuple[Finding, ...]:
    """Findings on a running server."""
    found = []
    for row in activity(facts):
        rule = {State.INACTIVE: "RUN001", State.UNPROVED: "RUN004"}.get(row.state)
        if rule is not None and row.id != _SPECULATION:  # which has rules of its own
            detail = f"{row.title} is requested by {row.requested}, and {row.state}: {row.evidence}"
            fix = (row.instead,) if row.state is State.INACTIVE and row.instead else None
            found.append(catalogue.finding(rule, detail=detail, object=row.requested, fix=fix))
    return (*found, *_judge_speculation(facts), *_judge_limit(facts))


def skipped(facts: RunningFacts) -> tuple[Skipped, ...]:
    """Sources that could not be asked: what they would have told is skipped, not passed."""
    return tuple(catalogue.skipped("RUN001", f"{source}: {why}") for source, why in facts.missing.items())


def _speculation(facts: RunningFacts) -> Activity | None:
    algorithm = value_of(facts.arguments, "--speculative-algorithm")
    if algorithm is None:
        return None
    state, evidence = State.UNPROVED, "no request was sent"
    if facts.acceptance is not None:
        length = facts.acceptance.length
        state = State.INACTIVE if length is None else State.ACTIVE
        evidence = f"{facts.acceptance.tokens} tokens in {facts.acceptance.verify_steps} verify passes"
        evidence += "" if length is None else f": accept length {length:.2f}"
    requested = f"--speculative-algorithm {algorithm}"
    return Activity(_SPECULATION, "speculation", requested, state, Source.REQUESTS, evidence)


def _state(feature: Feature, facts: RunningFacts) -> tuple[State, Source, str]:
    if feature.between_gpus and _gpus(facts) == 1:
        return State.INACTIVE, Source.SERVER_INFO, "it works between GPUs, and this server uses one"
    if feature.id in facts.marks:
        state, line = facts.marks[feature.id]
        return state, Source.LOG, f"the log says: {line}"
    if feature.metric is not None and feature.metric in facts.metrics:
        values = facts.metrics[feature.metric]
        return State.ACTIVE if all(values) else State.INACTIVE, Source.METRICS, f"{feature.metric} is {max(values):g}"
    if feature.argument is not None and feature.argument in facts.resolved:
        value = facts.resolved.get(feature.argument)
        state = State.ACTIVE if value is True else State.INACTIVE
        return state, Source.SERVER_INFO, f"/server_info reports {feature.argument} = {value}"
    if feature.silence == "inactive":
        return State.INACTIVE, Source.LOG, "the log has no line that this version writes when it is set up"
    return State.UNPROVED, Source.LOG, "the log has neither a success nor a warning"


def _options(facts: RunningFacts) -> Iterator[Activity]:
    """Options of the launch line whose resolved value says something.

    A value that is in force is shown; a flag that is true proves no kernel and gives no row. What the server took
    back, in silence, is inactive either way.
    """
    apart = _ELSEWHERE | {option for feature in features() for option in feature.options}
    for option, value in _single_values(facts.arguments):
        name = option[2:].replace("-", "_")
        found = facts.resolved.get(name)
        same = None if option in apart else _same(value, found)
        if same is None or (same and value is None):
            continue
        state = State.ACTIVE if same else State.INACTIVE
        requested = option if value is None else f"{option} {value}"
        evidence = f"/server_info reports {name} = {found}"
        yield Activity(name, name, requested, state, Source.SERVER_INFO, evidence)


def _single_values(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options that are given alone (None) or with one value."""
    starts = [number for number, word in enumerate(arguments) if word.startswith("--")]
    for start, end in pairwise([*starts, len(arguments)]):
        option, equals, value = arguments[start].partition("=")
        values = [value] if equals else list(arguments[start + 1 : end])
        if len(values) < 2:
            yield option, values[0] if values else None


def _same(asked: str | None, found: Json) -> bool | None:
    """Whether a resolved value is the one that was asked for; None where they cannot be compared."""
    match found:
        case bool():
            return found if asked is None else asked.lower() == str(found).lower()
        case int() | float() if asked is not None:
            try:
                return math.isclose(float(asked), found)
            except ValueError:
                return None
        case str() if asked is not None:
            return asked == found
        case _:
            return None


def _gpus(facts: RunningFacts) -> int:
    value = facts.resolved.get("tp_size")
    return value if isinstance(value, int) else 1


def _judge_speculation(facts: RunningFacts) -> tuple[Finding, ...]:
    if value_of(facts.arguments, "--speculative-algorithm") is None or facts.acceptance is None:
        return ()
    length = facts.acceptance.length
    evidence: dict[str, Json] = {
        "requests": facts.acceptance.requests,
        "tokens": facts.acceptance.tokens,
        "verify_steps": facts.acceptance.verify_steps,
    }
    if length is None:
        return (catalogue.finding("RUN003", evidence=evidence),)
    # an adaptive server may rightly not draft: its acceptance is no proof either way
    if length >= HARDLY_RIGHT or facts.resolved.get("speculative_adaptive") is True:
        return ()
    detail = f"accept length {length:.2f}: {facts.acceptance.tokens} tokens in {facts.acceptance.verify_steps} steps"
    return (catalogue.finding("RUN002", detail=detail, evidence=evidence),)


def _judge_limit(facts: RunningFacts) -> tuple[Finding, ...]:
    if facts.limit is None or value_of(facts.arguments, "--speculative-algorithm") is None:
        return ()
    asked = value_of(facts.arguments, "--max-running-requests")
    if asked is None and facts.limit == _DEFAULT_LIMIT:
        detail = f"no --max-running-requests was given; SGLang set {_DEFAULT_LIMIT} because of the speculation"
    elif asked is not None and asked.isdecimal() and facts.limit < int(asked):
        detail = f"{asked} were asked for, {facts.limit} is in force: the KV cache holds no more"
    else:
        return ()
    return (catalogue.finding("RUN005", detail=detail, evidence={"effective": facts.limit}),)

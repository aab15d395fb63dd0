"""Requested against active: what a running server shows of the features its launch line asked for.

Facts are collected by :mod:`stack_builder.serve.activity`; this module only judges them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.report import Finding
from stack_builder.report.model import Json

HARDLY_RIGHT = 1.05  # accept length below which drafting yields nothing; facts of peers' method rules
_DEFAULT_LIMIT = 48  # SGLang's own max_running_requests with EAGLE, every version (server_args.py)


class State(StrEnum):
    """What is known of a feature that was asked for."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    UNPROVED = "unproved"


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
class RunningFacts:
    """What was seen of one running server.

    Attributes:
        arguments: its launch arguments, the words after ``sglang.launch_server``.
        environment: variables that were set for it.
        resolved: ``/server_info`` without ``internal_states``.
        limit: effective ``max_running_requests``; None where not reported.
        marks: ids of :func:`features` with the log line that speaks for or against each.
        acceptance: of the request series; None where it was not run.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    resolved: Mapping[str, Json]
    limit: int | None
    marks: Mapping[str, tuple[State, str]]
    acceptance: Acceptance | None


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

    def requested_by(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
        """The option or variable that asks for it, else None."""
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        for option in self.options:
            if option in given:
                return option
        return next((f"{name}=1" for name in self.environment if environment.get(name) in ("1", "true")), None)


@dataclass(frozen=True, slots=True)
class Activity:
    """One feature, requested against active."""

    feature: Feature
    requested: str
    state: State
    evidence: str


@cache
def features() -> tuple[Feature, ...]:
    """The features that can be told apart in a log."""
    path = resources.checks() / "server" / "features.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["feature"]
    return tuple(
        Feature(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            | {side: tuple(re.compile(pattern) for pattern in row[side]) for side in ("active", "inactive")}
        )
        for row in rows
    )


def activity(facts: RunningFacts) -> tuple[Activity, ...]:
    """One row per feature that the launch line asks for."""
    rows = []
    for feature in features():
        requested = feature.requested_by(facts.arguments, facts.environment)
        if requested is not None:
            rows.append(Activity(feature, requested, *_state(feature, facts)))
    return tuple(rows)


def judge_running(facts: RunningFacts) -> tuple[Finding, ...]:
    """Findings on a running server."""
    found = []
    for row in activity(facts):
        rule = {State.INACTIVE: "RUN001", State.UNPROVED: "RUN004"}.get(row.state)
        if rule is not None:
            detail = f"{row.feature.title} is requested by {row.requested}, and {row.state}: {row.evidence}"
            fix = (row.feature.instead,) if row.state is State.INACTIVE else None
            found.append(catalogue.finding(rule, detail=detail, object=row.requested, fix=fix))
    return (*found, *_judge_speculation(facts), *_judge_limit(facts))


def _state(feature: Feature, facts: RunningFacts) -> tuple[State, str]:
    if feature.between_gpus and _gpus(facts) == 1:
        return State.INACTIVE, "it works between GPUs, and this server uses one"
    if feature.id in facts.marks:
        state, line = facts.marks[feature.id]
        return state, f"the log says: {line}"
    if feature.argument is not None:
        value = facts.resolved.get(feature.argument)
        state = State.ACTIVE if value is True else State.INACTIVE
        return state, f"/server_info reports {feature.argument} = {value}"
    if feature.silence == "inactive":
        return State.INACTIVE, "the log has no line that this version writes when it is set up"
    return State.UNPROVED, "the log has neither a success nor a warning"


def _gpus(facts: RunningFacts) -> int:
    value = facts.resolved.get("tp_size")
    return value if isinstance(value, int) else 1


def _judge_speculation(facts: RunningFacts) -> tuple[Finding, ...]:
    if "--speculative-algorithm" not in facts.arguments or facts.acceptance is None:
        return ()
    length = facts.acceptance.length
    evidence: dict[str, Json] = {
        "requests": facts.acceptance.requests,
        "tokens": facts.acceptance.tokens,
        "verify_steps": facts.acceptance.verify_steps,
    }
    if length is None:
        return (catalogue.finding("RUN003", evidence=evidence),)
    if length >= HARDLY_RIGHT:
        return ()
    detail = f"accept length {length:.2f}: {facts.acceptance.tokens} tokens in {facts.acceptance.verify_steps} steps"
    return (catalogue.finding("RUN002", detail=detail, evidence=evidence),)


def _judge_limit(facts: RunningFacts) -> tuple[Finding, ...]:
    if facts.limit is None or "--speculative-algorithm" not in facts.arguments:
        return ()
    asked = _value_of("--max-running-requests", facts.arguments)
    if asked is None and facts.limit == _DEFAULT_LIMIT:
        detail = f"no --max-running-requests was given; SGLang set {_DEFAULT_LIMIT} because of the speculation"
    elif asked is not None and asked.isdecimal() and facts.limit < int(asked):
        detail = f"{asked} were asked for, {facts.limit} is in force: the KV cache holds no more"
    else:
        return ()
    return (catalogue.finding("RUN005", detail=detail, evidence={"effective": facts.limit}),)


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for number, word in enumerate(arguments):
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None

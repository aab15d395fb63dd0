"""Collecting what a running server shows: resolved arguments, log lines, and a short series of real requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stack_builder import resources
from stack_builder.diagnose.running import Acceptance, RunningFacts, State, features
from stack_builder.errors import MachineError
from stack_builder.report.model import Json
from stack_builder.serve.client import ServerClient
from stack_builder.serve.plan import LaunchPlan

SERIES_TOKENS = 64  # per prompt: enough for an average, a second or two on any model
_FIRST_TIMEOUT = 300.0  # seconds; the first request may compile kernels (80 s were seen for sampling)
MAX_LOG = 32 << 20  # bytes; a start writes some 100 kB
_MAX_LINE = 2000  # characters of a log line that are matched


def collect(client: ServerClient, plan: LaunchPlan, log: Path) -> RunningFacts:
    """Ask the server and read its log."""
    info = client.server_info()
    acceptance = measure_acceptance(client)
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    return RunningFacts(
        arguments=plan.server_arguments,
        environment=plan.env,
        resolved={key: value for key, value in info.items() if key not in ("internal_states", "api_key")},
        limit=_limit(first, info),
        marks=marks(log),
        acceptance=acceptance,
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


def _scan(lines: Iterable[str], found: dict[str, tuple[State, str]]) -> None:
    for whole in lines:
        line = whole[:_MAX_LINE].rstrip()
        for feature in features():
            if any(pattern.search(line) for pattern in feature.inactive):
                found[feature.id] = (State.INACTIVE, line)
            elif feature.id not in found and any(pattern.search(line) for pattern in feature.active):
                found[feature.id] = (State.ACTIVE, line)


def _limit(state: Mapping[str, Json], info: Mapping[str, Json]) -> int | None:
    for source, key in ((state, "effective_max_running_requests_per_dp"), (info, "max_running_requests")):
        value = source.get(key)
        if isinstance(value, int):
            return value
    return None

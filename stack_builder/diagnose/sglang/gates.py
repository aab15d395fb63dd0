"""Rules SGL020…: what becomes of the features that a launch line asks for, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stack_builder.diagnose import catalogue
from stack_builder.report import Finding
from stack_builder.sglang.argv import LaunchLine
from stack_builder.sglang.gates import readings
from stack_builder.sglang.gates.readings import Feature, State
from stack_builder.sglang.gates.table import Gate, GateTable

_RULES = {
    State.SILENTLY_OFF: "SGL020",
    State.WARNS_OFF: "SGL021",
    State.REFUSES: "SGL022",
    State.CRASHES_LATE: "SGL023",
}
_BY_ITSELF = (State.SLOWER, State.WARNS_OFF, State.CRASHES_LATE, State.SILENTLY_OFF, State.REFUSES)
_RANKS = ("--tp-size", "--tensor-parallel-size")


def judge(line: LaunchLine, environment: Mapping[str, str], table: GateTable, gpu: str) -> Iterator[Finding]:
    """Judge every feature that the line or the environment asks for, and every default that they leave.

    Args:
        line: the parsed launch line.
        environment: variables set on purpose.
        table: gates of the release.
        gpu: such as ``sm_120``.
    """
    ranks = next((n for n in map(line.value, _RANKS) if isinstance(n, int)), 1)
    alone = ranks == 1 and any(line.is_given(name) for name in _RANKS)
    for name, feature in readings.load().items():
        asked = next((form for form in feature.requested if is_asked(form, line, environment)), None)
        gate = table.gate(name, gpu)
        if feature.default:
            if asked is None and gate.state in _BY_ITSELF and ranks >= feature.ranks:
                yield _default(name, feature, gate, table, gpu)
        elif asked is not None and not (alone and feature.ranks > 1):
            yield from _requested(name, feature, gate, table, gpu, asked)


def is_asked(form: str, line: LaunchLine, environment: Mapping[str, str]) -> bool:
    """Whether a line or environment holds a form such as ``--option``, ``--option=value`` or ``VARIABLE=1``."""
    name, equals, value = form.partition("=")
    if not name.startswith("--"):
        given = environment.get(name, "").lower()
        truths = {"1": ("1", "true", "yes", "y"), "0": ("0", "false", "no", "n")}
        return given in truths.get(value, (value,))
    if line.table.get(name) is None or not line.is_given(name):
        return False
    return not equals or line.value(name) == value


def _requested(name: str, feature: Feature, gate: Gate, table: GateTable, gpu: str, asked: str) -> Iterator[Finding]:
    if gate.state is State.ABSENT and not asked.startswith("--"):
        detail = f"SGLang {table.version} has no {asked.partition('=')[0]}: {feature.title} is not in this release"
        yield _finding("SGL017", detail, name, gate, table, gpu, asked)
    elif gate.state in _RULES:
        detail = f"{feature.title} on {gpu}: {gate.why}"
        yield _finding(_RULES[gate.state], detail, name, gate, table, gpu, asked)


def _default(name: str, feature: Feature, gate: Gate, table: GateTable, gpu: str) -> Finding:
    about = f" (for {feature.concerns})" if feature.concerns else ""
    detail = f"{feature.title}{about} on {gpu}: {gate.why}"
    return _finding("SGL024", detail, name, gate, table, gpu, "")


def _finding(rule: str, detail: str, name: str, gate: Gate, table: GateTable, gpu: str, asked: str) -> Finding:
    return catalogue.finding(
        rule,
        detail=detail,
        object=asked or None,
        distribution=f"sglang {table.version}",
        evidence={
            "feature": name,
            "gpu": gpu,
            "state": gate.state.value,
            "at": gate.at,
            "condition": gate.condition,
            "established": gate.established,
        },
        fix=table.instead(name, gpu) or (None if asked else ()),
    )

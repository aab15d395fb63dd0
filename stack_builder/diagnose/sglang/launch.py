"""Rules SGL001…: would this launch line start, on this release and GPU, and do what it says?

Pure functions of a parsed line, a release and its gates. What a rule says about a release comes from its source
(:mod:`stack_builder.sglang`), never from a version number here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from stack_builder import jsontext
from stack_builder.diagnose import catalogue
from stack_builder.diagnose.sglang import gates
from stack_builder.errors import first_line
from stack_builder.report import Finding, Severity
from stack_builder.sglang import argv, history
from stack_builder.sglang.argv import Kind, LaunchLine, Problem
from stack_builder.sglang.gates.table import GateTable
from stack_builder.sglang.release import Release
from stack_builder.sglang.speculation import SPEC_V2

EAGLE = ("EAGLE", "EAGLE3", "NEXTN")
_STEPS, _TOPK, _TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
_NUMBERS = (_STEPS, _TOPK, _TOKENS)
_ADAPTIVE = "--speculative-adaptive"
_DRAFT = "--speculative-draft-model-path"
_REQUESTS = "--max-running-requests"
# What options can mean that take any number: from, to (None for no end), and how that is said.
_RANGES: dict[str, tuple[float, float | None, str]] = {
    "--mem-fraction-static": (math.ulp(0.0), 1, "above 0 and at most 1"),
    _REQUESTS: (1, None, "of 1 or more"),
    "--context-length": (1, None, "of 1 or more"),
    "--tp-size": (1, None, "of 1 or more"),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """What is judged.

    Attributes:
        line: the parsed arguments.
        release: the SGLang that shall take them.
        environment: variables set for it; only those given on purpose.
        adaptive: content of the file that ``--speculative-adaptive-config`` names, where it was read.
    """

    line: LaunchLine
    release: Release
    environment: Mapping[str, str]
    adaptive: str | None = None

    @property
    def distribution(self) -> str:
        """For findings."""
        return f"sglang {self.release.version}"

    def find(
        self, rule: str, detail: str, option: str, fix: tuple[str, ...] | None = None, **evidence: object
    ) -> Finding:
        """Make a finding about an option of this line."""
        return catalogue.finding(
            rule, detail=detail, object=option, distribution=self.distribution, evidence=evidence, fix=fix
        )


def judge(
    arguments: Sequence[str],
    release: Release,
    *,
    environment: Mapping[str, str] | None = None,
    table: GateTable | None = None,
    gpu: str | None = None,
    adaptive: str | None = None,
) -> list[Finding]:
    """Check a launch line.

    Args:
        arguments: those after ``sglang.launch_server``.
        release: options and speculation rules of the SGLang that shall run.
        environment: variables set for the server on purpose, not the whole environment of this process.
        table: its gates; None skips them.
        gpu: such as ``sm_120``; None skips the gates.
        adaptive: content of the adaptive configuration file, where there is one.

    Returns:
        findings, in the order: what argparse refuses, how options go together, what is active on the GPU.
    """
    line = argv.parse(arguments, release.options)
    launch = Launch(line, release, dict(environment or {}), adaptive)
    findings = [*_refused(launch), *_deprecated(launch), *_ranges(launch), *_variables(launch), *_speculation(launch)]
    if table is not None and gpu is not None:
        findings += gates.judge(line, launch.environment, table, gpu)
    return findings


# what argparse refuses


def _refused(launch: Launch) -> Iterator[Finding]:
    for problem in launch.line.problems:
        match problem.kind:
            case Kind.UNKNOWN:
                yield _unknown(launch, problem.token)
            case Kind.AMBIGUOUS:
                yield _ambiguous(launch, problem)
            case Kind.MISSING:
                yield launch.find("SGL006", f"{problem.token} is not given", problem.token)
            case Kind.POSITIONAL:
                detail = f"'{problem.token}' belongs to no option"
                yield launch.find("SGL003", detail, problem.token, ("remove it, or quote the value it is a part of",))
            case _:
                yield _bad_value(launch, problem)


def _unknown(launch: Launch, token: str) -> Finding:
    life = history.load().get(token)
    version = launch.release.version
    if life is None:
        near = difflib.get_close_matches(token, launch.release.options.names, n=2, cutoff=0.8)
        fix = tuple(f"did you mean {name}?" for name in near)
        return launch.find("SGL001", f"SGLang {version} has no {token}", token, fix or None)
    if life.until is not None and Version(version) > Version(life.until):
        detail = f"{token} is gone: SGLang {life.until} is the last recorded release that has it"
        fix = (f"write {life.replacement}",) if life.replacement else ("remove it",)
        return launch.find("SGL001", detail, token, fix, last=life.until)
    detail = f"{token} is newer: SGLang {life.since} is the first recorded release that has it"
    return launch.find("SGL001", detail, token, (f"use SGLang {life.since} or newer", "remove it"), first=life.since)


def _ambiguous(launch: Launch, problem: Problem) -> Finding:
    life = history.load().get(problem.token)
    detail = f"{problem.token} could be {' or '.join(problem.candidates)}"
    fix = [f"write {name}" for name in problem.candidates]
    if life is not None and life.until is not None:
        detail = (
            f"{problem.token} is gone since SGLang {life.until}, and as an abbreviation it {detail.split(' ', 1)[1]}"
        )
        if life.replacement in problem.candidates:
            fix = [f"write {life.replacement}"]
    return launch.find("SGL002", detail, problem.token, tuple(fix))


def _bad_value(launch: Launch, problem: Problem) -> Finding:
    option = problem.option
    assert option is not None
    match problem.kind:
        case Kind.NO_VALUE:
            detail = f"{problem.token} needs a value"
        case Kind.NEEDLESS_VALUE:
            detail = f"{problem.token}: the option takes no value"
        case Kind.BAD_CHOICE:
            known = ", ".join(map(str, option.choices or ()))
            detail = f"{problem.token}: SGLang {launch.release.version} takes {known}"
        case _:
            detail = f"{problem.token}: not of type {option.type}"
    return launch.find("SGL003", detail, option.name)


def _deprecated(launch: Launch) -> Iterator[Finding]:
    for given in launch.line.given:
        if given.option.deprecated and given.name in given.option.names:
            replacement = given.option.replacement
            fix = (f"write {replacement}",) if replacement else ("remove it",)
            yield launch.find("SGL004", given.option.help or f"{given.name} is deprecated", given.spelled, fix)
        elif given.spelled != given.name:
            yield launch.find("SGL005", f"{given.spelled} stands for {given.name}", given.spelled)


def _ranges(launch: Launch) -> Iterator[Finding]:
    for option, (least, most, means) in _RANGES.items():
        value = launch.line.value(option)
        # not "below or above": nan is neither
        if isinstance(value, int | float) and not least <= value <= (math.inf if most is None else most):
            yield launch.find(
                "SGL007", f"{option} is {value}; it takes one {means}", option, (f"write a number {means}",)
            )


def _variables(launch: Launch) -> Iterator[Finding]:
    known = launch.release.speculation.environment
    if SPEC_V2 in launch.environment and SPEC_V2 not in known:
        detail = f"SGLang {launch.release.version} has no {SPEC_V2}: overlap with speculation is always on"
        yield launch.find("SGL017", detail, SPEC_V2)


# how options of speculation go together


def _speculation(launch: Launch) -> Iterator[Finding]:
    line = launch.line
    algorithm = str(line.value("--speculative-algorithm") or "").upper()
    if algorithm not in EAGLE:
        if line.value(_ADAPTIVE):
            detail = f"--speculative-algorithm is {algorithm or 'not given'}; it wants EAGLE or EAGLE3"
            yield launch.find("SGL014", detail, line.spelling(_ADAPTIVE))
        return
    if algorithm == "EAGLE3" and not line.is_given(_DRAFT):
        yield launch.find("SGL016", f"{_DRAFT} is not given", "--speculative-algorithm")
    yield from _numbers(launch)
    yield from _pages(launch)
    yield from _cap(launch)
    yield from _overlap(launch)
    if line.value(_ADAPTIVE):
        yield from _adaptive(launch)


def _numbers(launch: Launch) -> Iterator[Finding]:
    line = launch.line
    given = {name: line.value(name) for name in _NUMBERS if line.value(name) is not None}
    adaptive = bool(line.value(_ADAPTIVE))
    if given and len(given) < 3 and not adaptive:
        missing = " and ".join(name for name in _NUMBERS if name not in given)
        yield launch.find("SGL010", f"{' and '.join(given)} without {missing}", next(iter(given)))
        return
    steps, topk, tokens = (given.get(name) for name in _NUMBERS)
    if topk == 1 and isinstance(steps, int) and tokens is not None and tokens != steps + 1:
        detail = f"{_TOKENS} {tokens} becomes {steps + 1}, as {_STEPS} is {steps} and {_TOPK} is 1"
        yield launch.find("SGL011", detail, _TOKENS, (f"write {_TOKENS} {steps + 1}",))


def _pages(launch: Launch) -> Iterator[Finding]:
    line, backends = launch.line, launch.release.speculation.tree_backends
    topk, page, backend = (line.value(name) for name in (_TOPK, "--page-size", "--attention-backend"))
    wide = isinstance(topk, int) and topk > 1
    if wide and isinstance(page, int) and page > 1 and backend is not None and backend not in backends and backends:
        known = " or ".join(backends)
        detail = f"{_TOPK} {topk} with --page-size {page} and {backend}; SGLang {launch.release.version} takes {known}"
        fixes = (*catalogue.rule("SGL012").fix, f"set --attention-backend {backends[0]}")
        yield launch.find("SGL012", detail, _TOPK, fixes)
    if wide and "trtllm_mha" in (line.value(f"--{p}attention-backend") for p in ("", "prefill-", "decode-")):
        yield launch.find("SGL012", f"trtllm_mha takes a top-k of 1 only, not {topk}", _TOPK)


def _cap(launch: Launch) -> Iterator[Finding]:
    cap = launch.release.speculation.request_cap
    if cap is not None and launch.line.value(_REQUESTS) is None:
        detail = f"{_REQUESTS} is not given, so SGLang {launch.release.version} sets {cap}"
        yield catalogue.finding(
            "SGL013",
            title=f"Concurrency is capped at {cap}",
            detail=detail,
            object=_REQUESTS,
            distribution=launch.distribution,
        )


def _overlap(launch: Launch) -> Iterator[Finding]:
    default = launch.release.speculation.overlap_variable
    asked = launch.environment.get(SPEC_V2, "").lower() in ("1", "true", "yes")
    topk = launch.line.value(_TOPK)
    if asked and default is False and isinstance(topk, int) and topk > 1:
        detail = f"{SPEC_V2}=1 wants {_TOPK} 1, not {topk}: SGLang stops with a ValueError"
        yield catalogue.finding(
            "SGL015", severity=Severity.ERROR, detail=detail, object=_TOPK, distribution=launch.distribution
        )
    elif default is False and not asked:
        yield launch.find("SGL015", f"{SPEC_V2} is off by default in this release", "--speculative-algorithm")


def _adaptive(launch: Launch) -> Iterator[Finding]:
    line, rules = launch.line, launch.release.speculation
    topk = line.value(_TOPK)
    if topk not in (None, 1):
        yield launch.find("SGL014", f"{_TOPK} is {topk}; only 1 is supported", _TOPK, (f"set {_TOPK} 1",))
    for dest in rules.adaptive_excludes:
        option = "--" + dest.replace("_", "-")
        if line.value(option) is True:
            yield launch.find("SGL014", f"{option} does not go with it", line.spelling(option), (f"remove {option}",))
    if rules.adaptive_needs_no_overlap and not line.value("--disable-overlap-schedule"):
        detail = "in this release it runs without the overlap scheduler only"
        yield launch.find("SGL014", detail, _ADAPTIVE, ("add --disable-overlap-schedule", "use SGLang 0.5.12 or newer"))
    wrong = _malformed(launch.adaptive, by_batch_size=bool(rules.adaptive_rows))
    if wrong:
        yield launch.find("SGL019", wrong, "--speculative-adaptive-config")
        return
    rows = _rows(launch.adaptive) or rules.adaptive_rows
    yield from _reachable(launch, rows)
    steps = line.value(_STEPS)
    candidates = sorted({step for row in rows.values() for step in row})
    if rows and isinstance(steps, int) and steps not in candidates:
        detail = f"{_STEPS} {steps} is none of the candidates {candidates}"
        yield launch.find("SGL014", detail, _STEPS, (f"set {_STEPS} to one of {candidates}",))


def _reachable(launch: Launch, rows: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    most = launch.line.value(_REQUESTS) or launch.release.speculation.request_cap
    beyond = sorted(int(key) for key in rows if isinstance(most, int) and int(key) > most)
    if beyond:
        detail = f"rows from batch size {', '.join(map(str, beyond))} on; at most {most} requests run at a time"
        yield launch.find("SGL018", detail, _REQUESTS, (f"set {_REQUESTS} {max(beyond)} or more",))


def _malformed(text: str | None, *, by_batch_size: bool) -> str:
    """Why SGLang cannot read an adaptive configuration (``_load_adaptive_config``); empty where it can, or for none."""
    if text is None:
        return ""
    try:
        body = jsontext.loads(text, lenient=True)
    except ValueError as error:
        return f"not JSON: {first_line(error)}"
    if not isinstance(body, dict):
        return "not a JSON object"
    rows = {key: entry for key, entry in body.items() if key.isdigit()}
    if by_batch_size and not rows:
        return "no key is a batch size"
    for key, entry in rows.items():
        steps = entry.get("candidate_steps") if isinstance(entry, dict) else None
        if not isinstance(steps, list) or not steps or not all(isinstance(step, int) and step >= 0 for step in steps):
            return f"candidate_steps of batch size {key} is no list of whole numbers"
    return ""


def _rows(text: str | None) -> dict[str, tuple[int, ...]]:
    """Rows of an adaptive configuration file; none where it is absent or not of that form."""
    try:
        body = jsontext.loads(text, lenient=True) if text else {}
    except ValueError:
        return {}
    rows = {}
    for key, entry in body.items() if isinstance(body, dict) else ():
        steps = entry.get("candidate_steps") if isinstance(entry, dict) else None
        if key.isdigit() and isinstance(steps, list):
            rows[key] = tuple(step for step in steps if isinstance(step, int))
    return rows

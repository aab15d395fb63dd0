"""The report for people: verdict and first step, then findings by weight, what was skipped, facts.

Plain lines within the width of the console: no boxes, no markup in data, no control characters. Colour is rich's
decision (off when piped or with ``NO_COLOR``) and never carries meaning on its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from rich.console import Console
from rich.text import Text

from stack_builder.report.model import Finding, Json, Report, Severity, Verdict
from stack_builder.terminal import printable

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
_VERDICT_STYLE = {Verdict.PASS: "bold green", Verdict.FINDINGS: "bold red", Verdict.INCOMPLETE: "bold yellow"}
_MAX_VALUE = 400  # characters of one value of evidence
_MAX_ITEMS = 8  # items of one list of evidence
_MAX_FACTS = 16

_Remedy = tuple[str | None, tuple[str, ...]]  # cause and fixes of a finding


def render_text(report: Report, console: Console) -> None:
    """Print ``report``; the first two lines say what is wrong and what to do first."""
    page = _Page(console)
    page.line(f"{_target(report)}: {_verdict(report)}", style=_VERDICT_STYLE[report.verdict])
    first = first_step(report)
    if first is not None:
        page.line(first, head="First: ")
    told: dict[str, _Remedy] = {}  # of the last finding of each rule
    for severity in Severity:
        group = [finding for finding in report.findings if finding.severity is severity]
        if group:
            page.heading(f"{severity.value.upper()}S" if len(group) > 1 else severity.value.upper())
            for finding, *alike in _alike(group):
                remedy = (finding.cause, finding.fix)
                _finding(page, finding, alike, again=told.get(finding.rule) == remedy)
                told[finding.rule] = remedy
    if report.skipped:
        page.heading("SKIPPED (not checked is not passed)")
        together: dict[str, list[str]] = {}  # one reason often stands for many rules
        for skipped in report.skipped:
            together.setdefault(skipped.reason, []).append(skipped.rule)
        for reason, (rule, *others) in together.items():
            also = f" (also {', '.join(others)})" if others else ""
            page.line(f"{reason}{also}", head=f"  {printable(rule):<8} ")
    if report.facts:
        page.heading("FACTS")
        _facts(page, report.facts)


def first_step(report: Report) -> str | None:
    """Give the first thing to do: the first fix of the heaviest finding that has one."""
    for severity in (Severity.ERROR, Severity.WARNING):
        for finding in report.findings:
            if finding.severity is severity and finding.fix:
                return finding.fix[0]
    return None


def _target(report: Report) -> str:
    return f"{report.target.kind}:{report.target.name}"


def _verdict(report: Report) -> str:
    parts = [
        _count(sum(f.severity is severity for f in report.findings), severity.value)
        for severity in Severity
        if any(f.severity is severity for f in report.findings)
    ]
    if report.skipped:
        parts.append(f"{_count(len(report.skipped), 'rule')} skipped")
    match report.verdict:
        case Verdict.PASS:
            return ", ".join(["nothing is wrong", *parts])
        case Verdict.INCOMPLETE:
            return ", ".join(["nothing was found, but not everything could be checked", *parts])
        case Verdict.FINDINGS:
            return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put together what one thing does to several objects of a distribution: one rule, one cause, one remedy."""
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        alone = finding.distribution is None or finding.object is None or not finding.fix
        key = (finding.rule, finding.title, finding.distribution, finding.cause, finding.fix)
        groups.setdefault(number if alone else key, []).append(finding)
    return list(groups.values())


def _finding(page: _Page, finding: Finding, others: Sequence[Finding], *, again: bool) -> None:
    """Print one finding, and the objects of ``others`` like it (the JSON view has them whole).

    ``again``: its fixes stand with the last finding of its rule and are not repeated.
    """
    page.line(finding.title, head=f"  {printable(finding.rule):<8} ", style=_STYLE[finding.severity])
    inside = " " * 11
    where = " of ".join(part for part in (finding.object, finding.distribution) if part)
    if where:
        page.line(where, head=f"{inside}in ")
    if finding.detail:
        page.line(finding.detail, head=inside)
    if finding.cause:
        page.line(finding.cause, head=f"{inside}cause: ")
    for key, value in finding.evidence.items():
        _value(page, f"{inside}{printable(key).replace('_', ' ')}: ", value)
    if others:
        _value(page, f"{inside}likewise: ", [str(other.object) for other in others])
    if finding.fix and again:
        page.line(f"as for {finding.rule} above", head=f"{inside}fix: ")
        return
    for number, fix in enumerate(finding.fix, 1):
        page.line(fix, head=f"{inside}fix: " if len(finding.fix) == 1 else f"{inside}fix {number}: ")


def _value(page: _Page, head: str, value: Json) -> None:
    """Print one value of evidence: scalars in place, a list of objects or long strings one item a line."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_condensed(item) for item in value[:_MAX_ITEMS]]
        more = f"and {len(value) - _MAX_ITEMS} more" if len(value) > _MAX_ITEMS else None
        if any(isinstance(item, Mapping) or len(text) > 40 for item, text in zip(value, items, strict=False)):
            page.line("", head=head)
            for text in [*items, *([more] if more else [])]:
                page.line(text, head=" " * 13)
            return
        page.line(", ".join([*items, *([more] if more else [])]) or "none", head=head)
        return
    page.line(_condensed(value), head=head)


def _condensed(value: Json) -> str:
    match value:
        case str():
            text = value
        case Mapping() if set(value) == {"line", "text"}:
            text = f"line {value['line']}: {value['text']}"
        case Mapping():
            text = ", ".join(f"{key}={_condensed(item)}" for key, item in islice(value.items(), _MAX_ITEMS))
        case list() | tuple():
            text = ", ".join(_condensed(item) for item in value[:_MAX_ITEMS])
            text += f" and {len(value) - _MAX_ITEMS} more" if len(value) > _MAX_ITEMS else ""
        case None:
            text = "unknown"
        case bool():
            text = "yes" if value else "no"
        case _:
            text = str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."


def _facts(page: _Page, facts: Mapping[str, Json]) -> None:
    """One line each, cut to the width: the JSON view has them whole. A sentence is wrapped: it may hold a command."""
    for key, value in islice(facts.items(), _MAX_FACTS):
        if isinstance(value, str):
            page.line(_condensed(value), head=f"  {printable(key)}: ")
        else:
            page.cut_line(f"  {key}: {_condensed(value)}")
    if len(facts) > _MAX_FACTS:
        page.cut_line(f"  and {len(facts) - _MAX_FACTS} more (--format json)")


class _Page:
    """Wraps lines to the console's width under a hanging indent and never breaks a path or a symbol."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, 120)

    def heading(self, text: str) -> None:
        self._print(Text())
        self._print(Text(text, style="bold"))

    def line(self, text: str, *, head: str = "", style: str = "") -> None:
        for number, part in enumerate(_wrapped(printable(text), head, self._width)):
            start = head if number == 0 else " " * len(head)
            self._print(Text(start).append(Text(part, style=style)))

    def cut_line(self, text: str) -> None:
        text = printable(text)
        self._print(Text(text if len(text) <= self._width else f"{text[: self._width - 3]}..."))

    def _print(self, text: Text) -> None:
        # rich would wrap again, and break long words to do so
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False, highlight=False)


def _wrapped(text: str, head: str, width: int) -> Iterator[str]:
    room = max(width - len(head), 20)
    lines: Iterable[str] = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield from lines

"""The report for code-scanning services: SARIF 2.1.0 (OASIS standard, errata 01)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from stack_builder import __version__, jsontext
from stack_builder.report.model import Finding, Json, Report, Rule, Severity, Verdict

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MAX_LINES = 20


def to_sarif(report: Report, rules: Iterable[Rule] = ()) -> str:
    """Write ``report`` as SARIF.

    Args:
        report: what was found.
        rules: descriptions of its rules, for services that show them beside each result; a rule that is not given
            is described by its finding's title.
    """
    described = {rule.id: rule for rule in rules}
    titles = {finding.rule: finding.title for finding in report.findings}
    titles.update({skipped.rule: skipped.rule for skipped in report.skipped if skipped.rule not in titles})
    index = {rule: number for number, rule in enumerate(sorted(titles))}
    run = {
        "tool": {
            "driver": {
                "name": "stackb",
                "version": __version__,
                "rules": [_rule(rule, titles[rule], described.get(rule)) for rule in index],
            }
        },
        "invocations": [
            {
                "executionSuccessful": report.verdict is not Verdict.INCOMPLETE,
                "toolExecutionNotifications": [
                    {
                        "level": "note",
                        "message": {"text": f"not checked: {skipped.reason}"},
                        "associatedRule": {"id": skipped.rule, "index": index[skipped.rule]},
                    }
                    for skipped in report.skipped
                ],
            }
        ],
        "results": [_result(report, finding, index[finding.rule]) for finding in report.findings],
        "properties": {"target": f"{report.target.kind}:{report.target.name}", "verdict": report.verdict.value},
    }
    body = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return jsontext.dumps(body)


def _rule(rule_id: str, title: str, rule: Rule | None) -> dict[str, Json]:
    if rule is None:
        return {"id": rule_id, "shortDescription": {"text": title}}
    return {
        "id": rule_id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": "\n".join(rule.fix) or rule.why},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def _result(report: Report, finding: Finding, index: int) -> dict[str, Json]:
    text = ". ".join(part.rstrip(".") for part in (finding.title, finding.detail, *finding.fix) if part)
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{text}."},
        "locations": _locations(report, finding),
        "properties": {
            "cause": finding.cause,
            "distribution": finding.distribution,
            "evidence": dict(finding.evidence),
            "fix": list(finding.fix),
        },
    }


def _locations(report: Report, finding: Finding) -> list[dict[str, Json]]:
    """A file where there is one, with the lines of a log that prove the finding; else the target by name."""
    place = finding.object or (report.target.name if report.target.kind == "log" else None)
    if place is None:
        name = finding.distribution or f"{report.target.kind}:{report.target.name}"
        return [{"logicalLocations": [{"name": name}]}]
    artifact = {"artifactLocation": {"uri": quote(place)}}
    lines = _lines(finding.evidence)
    if not lines:
        return [{"physicalLocation": artifact}]
    return [{"physicalLocation": {**artifact, "region": {"startLine": line}}} for line in lines[:_MAX_LINES]]


def _lines(evidence: Mapping[str, Json]) -> list[int]:
    """Line numbers (from 1) in ``evidence["lines"]``, a list of ``{"line": …, "text": …}``."""
    lines = evidence.get("lines")
    if not isinstance(lines, list | tuple):
        return []
    numbers = [item.get("line") for item in lines if isinstance(item, Mapping)]
    return [number for number in numbers if isinstance(number, int) and number > 0]

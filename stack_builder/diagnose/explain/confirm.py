"""Holds what a text claims against the static check of the environment that it is said to come from."""

from __future__ import annotations

from dataclasses import replace

from stack_builder.diagnose import catalogue
from stack_builder.report import Finding, Report, Severity
from stack_builder.report.model import Json

_STATIC = ("ABI", "ARCH", "CUDA", "HOST")  # families that the static check runs


def confirm(explained: Report, examined: Report) -> Report:
    """Join an explanation with a static check.

    A cause that the check finds too goes first. Of each other cause that such a check could have found, it is said
    that it was not.

    Args:
        explained: of the text.
        examined: of the target.

    Returns:
        the explanation, its order changed where the check decides, with a finding ``LOG004`` per cause.
    """
    claims = [finding for finding in explained.findings if finding.cause is not None]
    seen = {finding.cause for finding in examined.counted}
    ordered = [claim for claim in claims if claim.cause in seen] + [
        claim for claim in claims if claim.cause not in seen
    ]
    if ordered:
        ordered[0] = replace(ordered[0], rule="LOG001", severity=_weight(ordered[0], claims[0], seen))
        ordered[1:] = [replace(claim, rule="LOG002", severity=Severity.NOTE) for claim in ordered[1:]]
    rest = [finding for finding in explained.findings if finding.cause is None]
    checks = [_check(claim, examined) for claim in ordered]
    facts = {**explained.facts, "target": f"{examined.target.kind}:{examined.target.name}"}
    return Report(explained.target, (*ordered, *checks, *rest), explained.skipped, facts)


def _weight(now_first: Finding, first: Finding, seen: set[str | None]) -> Severity:
    return Severity.ERROR if now_first.cause in seen else first.severity


def _check(claim: Finding, examined: Report) -> Finding:
    same = [finding for finding in examined.counted if finding.cause == claim.cause]
    target = f"{examined.target.kind}:{examined.target.name}"
    evidence: dict[str, Json] = {"claim": claim.cause}
    if same:
        evidence |= {"result": "confirmed", "rules": sorted({finding.rule for finding in same})}
        evidence |= {"objects": sorted({finding.object for finding in same if finding.object})}
        detail = f"The static check of {target} finds it, too: {same[0].title}. {same[0].detail}".rstrip()
        return catalogue.finding("LOG004", cause=claim.cause, detail=detail, evidence=evidence, fix=same[0].fix)
    able = {rule.id for rule in catalogue.rules().values() if rule.cause == claim.cause and rule.id[:-3] in _STATIC}
    open_rules = able & {skipped.rule for skipped in examined.skipped}
    if able and not open_rules:
        evidence["result"] = "refuted"
        detail = (
            f"The static check of {target} does not find it: the text is of another environment, or it has changed."
        )
    else:
        evidence["result"] = "not checked"
        reasons = [skipped.reason for skipped in examined.skipped if skipped.rule in open_rules]
        detail = f"No static check of {target} can tell{f': {reasons[0]}' if reasons else ''}."
    return catalogue.finding("LOG004", cause=claim.cause, detail=detail, evidence=evidence)

"""From the states of patches to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stack_builder.diagnose import catalogue
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Hardware, Patch
from stack_builder.patchset.states import State, Status, assess
from stack_builder.report import Finding, Report, Target
from stack_builder.report.model import Json


@dataclass(frozen=True, slots=True)
class Seen:
    """A patch and what was found.

    Attributes:
        patch: the patch.
        distribution: what it patches; None where that is not in the target.
        status: its state; None likewise.
        extra: it is applied, and not among the patches that are wanted.
    """

    patch: Patch
    distribution: Distribution | None = None
    status: Status | None = None
    extra: bool = False

    @property
    def owner(self) -> str:
        """``name version``, or what is missing."""
        if self.distribution is None:
            return f"{self.patch.spec.distribution} (not there)"
        return f"{self.distribution.name} {self.distribution.version}"

    def as_fact(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "id": self.patch.id,
            "sha256": self.patch.sha256,
            "distribution": self.owner,
            "state": self.status.state.value if self.status else None,
            "detail": self.status.detail if self.status else "",
            "no_effect": self.status.no_effect if self.status else None,
            "files": list(self.patch.spec.files),
        }


def look(
    name: str, distributions: Mapping[str, Distribution], patches: Iterable[Patch], hardware: Hardware
) -> list[Seen]:
    """See where the patches of one distribution stand: those given, and those applied beside them.

    Args:
        name: of the distribution.
        distributions: what the target holds.
        patches: those that are wanted; only those for ``name`` count.
        hardware: what it is to run on.

    Raises:
        UsageError: the distribution has no RECORD.
        IntegrityError: its patch manifest is damaged.
    """
    wanted = [patch for patch in patches if patch.spec.distribution == name]
    if name not in distributions:
        return [Seen(patch) for patch in wanted]
    distribution = distributions[name]
    ids = {patch.id for patch in wanted}
    series = [*wanted, *(patch for patch in distribution.applied if patch.id not in ids)]
    return [
        Seen(one.patch, distribution, one, extra=one.patch.id not in ids)
        for one in assess(series, distribution, hardware)
    ]


def judge(target: Target, seen: Iterable[Seen], *, asked: bool, installed: bool, interrupted: bool) -> Report:
    """Make the report.

    Args:
        target: what was looked at.
        seen: one for each patch.
        asked: the patches are a series someone wants, not just all there are; then each has to fit and be needed.
        installed: the target is an environment, in which a series has to be applied.
        interrupted: a run was ended after its commit.
    """
    seen = tuple(seen)
    findings = [catalogue.finding("PATCH005")] if interrupted else []
    for one in seen:
        found = _finding(one, asked=asked, installed=installed)
        if found is not None:
            findings.append(found)
        if one.status is not None and one.status.no_effect and one.status.state in (State.APPLIED, State.NO_EFFECT):
            findings.append(_named(one, "PATCH004", one.status.no_effect))
    return Report(target, tuple(findings), facts={"patches": [one.as_fact() for one in seen]})


def _finding(seen: Seen, *, asked: bool, installed: bool) -> Finding | None:
    if seen.status is None:
        return _named(seen, "PATCH003", seen.owner) if asked else None
    match seen.status.state:
        case State.DRIFTED:
            return _named(seen, "PATCH001", seen.status.detail)
        case State.APPLIED if asked and seen.extra:
            return _named(seen, "PATCH007", "")
        case State.CONFLICT if asked:
            return _named(seen, "PATCH002", seen.status.detail)
        case State.OBSOLETE if asked:
            return _named(seen, "PATCH003", seen.status.detail)
        case State.APPLIES | State.NO_EFFECT if asked and installed:
            return _named(seen, "PATCH006", "")
        case _:
            return None


def _named(seen: Seen, rule: str, detail: str) -> Finding:
    detail = f"{seen.patch.id}: {detail}" if detail else seen.patch.id
    evidence: dict[str, Json] = {"patch": seen.patch.id, "sha256": seen.patch.sha256}
    owner = seen.owner if seen.distribution else None
    return catalogue.finding(
        rule, detail=detail, object=seen.patch.spec.files[0], distribution=owner, evidence=evidence
    )

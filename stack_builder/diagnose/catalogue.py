"""The catalogue of rules (``checks/rules/``) and of causes (``checks/errors/causes.toml``).

Judges name a rule and add what they saw; title, weight, cause and fix come from here, so that no text stands twice.
One file per family: every id in ``abi.toml`` is ``ABI`` and three digits. A family is read when first asked for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from stack_builder import resources
from stack_builder.errors import UsageError, refused
from stack_builder.report import Finding, Rule, Severity, Skipped
from stack_builder.report.model import Json

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Need = Literal["lock", "files", "host", "gpu", "model", "server", "log"]
_T = TypeVar("_T")
_ID = re.compile(r"([A-Z]{3,5})[0-9]{3}")


class _Entry(BaseModel):
    """One table of a rules file; its key is the rule's id."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[Text, StringConstraints(max_length=100, pattern=r"[^.]$")]
    severity: Severity
    why: Text
    fix: tuple[Text, ...]
    cause: str | None = None
    needs: Annotated[tuple[Need, ...], Field(min_length=1)]
    silence: Text | None = None


class _Cause(BaseModel):
    """One table of ``causes.toml``; its key is the name."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    meaning: Text
    fix: Annotated[tuple[Text, ...], Field(min_length=1)]


def rule(rule_id: str) -> Rule:
    """Give one rule.

    Raises:
        UsageError: no rule has this id.
    """
    match = _ID.fullmatch(rule_id)
    found = None if match is None else _family(match[1].lower()).get(rule_id)
    if found is None:
        raise UsageError(f"no rule '{rule_id}'", fix="run stackb rules for the list")
    return found


def rules() -> dict[str, Rule]:
    """All rules by id, sorted."""
    families = sorted(path.stem for path in (resources.checks() / "rules").glob("*.toml"))
    every = {rule_id: entry for family in families for rule_id, entry in _family(family).items()}
    return dict(sorted(every.items()))


def causes() -> dict[str, str]:
    """What each name means that ``cause`` may take, in one line."""
    return {name: cause.meaning for name, cause in _causes().items()}


def cause_fixes(cause: str) -> tuple[str, ...]:
    """What usually helps against a cause, most likely first."""
    return _causes()[cause].fix


def finding(
    rule_id: str,
    *,
    detail: str = "",
    object: str | None = None,  # noqa: A002 - the field's name in reports
    distribution: str | None = None,
    evidence: Mapping[str, Json] | None = None,
    fix: tuple[str, ...] | None = None,
    severity: Severity | None = None,
    cause: str | None = None,
    title: str | None = None,
) -> Finding:
    """Make a finding of a rule; what is not given comes from the catalogue.

    Args:
        rule_id: such as ``ABI001``; the rule must exist.
        detail: what exactly, in a sentence or two.
        object: the file, wheel entry or option concerned.
        distribution: ``name version`` of the wheel that owns the object.
        evidence: JSON-ready facts that prove it.
        fix: more exact steps than the catalogue's.
        severity: where this case weighs more or less than usual.
        cause: where the rule covers several.
        title: where the rule covers several.
    """
    entry = rule(rule_id)
    return Finding(
        rule=rule_id,
        severity=severity or entry.severity,
        title=title or entry.title,
        detail=detail,
        object=object,
        distribution=distribution,
        cause=cause or entry.cause,
        evidence=dict(evidence or {}),
        fix=entry.fix if fix is None else fix,
    )


def sentence(what: str) -> str:
    """A sentence for a detail, of what an error or a rule says in lower case and without a full stop."""
    return f"{what[:1].upper()}{what[1:]}."


def skipped(rule_id: str, reason: str) -> Skipped:
    """Record that a rule could not run, and why."""
    return Skipped(rule(rule_id).id, reason)


@cache
def _family(family: str) -> Mapping[str, Rule]:
    path = resources.checks() / "rules" / f"{family}.toml"
    if not path.is_file():
        return {}
    entries = read_toml(path, TypeAdapter(dict[str, _Entry]))
    made: dict[str, Rule] = {}
    for rule_id, entry in entries.items():
        match = _ID.fullmatch(rule_id)
        if match is None or match[1].lower() != family:
            raise UsageError(f"rule '{rule_id}' does not belong here: an id is {family.upper()}001 to 999", where=path)
        if entry.cause is not None and entry.cause not in _causes():
            raise UsageError(
                f"{rule_id}: unknown cause '{entry.cause}'", where=path, fix="see checks/errors/causes.toml"
            )
        made[rule_id] = Rule(id=rule_id, **{name: getattr(entry, name) for name in type(entry).model_fields})
    return made


@cache
def _causes() -> Mapping[str, _Cause]:
    return read_toml(resources.checks() / "errors" / "causes.toml", TypeAdapter(dict[str, _Cause]))


def read_toml(path: Path, adapter: TypeAdapter[_T]) -> _T:
    """Read a file of the repository's data and validate it.

    Raises:
        UsageError: not TOML, or not of this shape; names the key.
    """
    try:
        return adapter.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", where=path) from error
    except ValidationError as error:
        raise UsageError(refused(error), where=path) from error

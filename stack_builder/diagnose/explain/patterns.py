"""The error texts of the field, as data: ``checks/errors/*.toml``.

``causes.toml`` says what each cause means and what to do about it, ``contexts.toml`` names what a text may show beside
its error (a CPU build of torch, a GPU of SM 12.x, …), every other file holds ``[[pattern]]`` tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.diagnose.explain.literals import Literals
from stack_builder.errors import UsageError

MIN_LITERAL = 5  # characters that every line which a pattern matches must hold in one piece
_MAX_ALTERNATIVES = 24  # literals for one regular expression
_OPENING = re.compile(r"\((?:\?P<\w+>|\?:|(?P<around>\?<?[=!]))?")
_QUANTIFIER = re.compile(r"[?*+][?+]?|\{[\d,]+\}\??")

_Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
_Regex = Annotated[str, StringConstraints(min_length=1)]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Confidence(StrEnum):
    """How far the text alone carries."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Kind(StrEnum):
    """What a line is in the story of a failure."""

    CAUSE = "cause"
    SYMPTOM = "symptom"
    CONSEQUENCE = "consequence"
    DEATH = "death"
    HARMLESS = "harmless"


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class _Pattern(_Table):
    id: _Name
    kind: Kind = Kind.CAUSE
    cause: str | None = None
    text: Annotated[tuple[_Regex, ...], Field(min_length=1)]
    but_not: tuple[_Regex, ...] = ()
    told_by: tuple[_Regex, ...] = ()
    context: tuple[str, ...] = ()
    no_context: tuple[str, ...] = ()
    specificity: Annotated[int, Field(ge=1, le=100)] = 50
    confidence: Confidence = Confidence.LIKELY
    meaning: _Text | None = None
    also: tuple[str, ...] = ()
    look_next: tuple[_Text, ...] = ()
    fix: tuple[_Text, ...] = ()
    fix_elsewhere: tuple[_Text, ...] = ()
    pinned: str | None = None
    source: _Text | None = None


class _File(_Table):
    pattern: tuple[_Pattern, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One known error text.

    Attributes:
        id: stable name, shown as evidence.
        kind: a cause; a symptom, which says that something failed and not why; a line that only follows from a cause.
        cause: name of ``causes.toml``; None unless ``kind`` is a cause.
        texts: any of the regular expressions, found anywhere in a line, is a match; their groups fill ``meaning``.
            Each stands behind a string that a line must hold before it is tried.
        but_not: a line that any of them matches is no match.
        told_by: the line leaves its cause to another, which any of them matches: where a cause is found in such a line
            nearby, that one counts in this one's place.
        context: contexts that the text as a whole must show.
        no_context: contexts that it must not show.
        specificity: 1 to 100; the more a text says by itself, the higher.
        confidence: how sure the cause is when it matches.
        meaning: what the line says, in a sentence.
        also: other causes that the same text can have.
        look_next: what decides between them.
        fix: what to do; the cause's own list where empty.
        fix_elsewhere: what to do where the text may be of any program: nothing in it speaks of a serving stack, or the
            package that it names is none that a stack pins. Empty where the text itself can only be of one.
        pinned: the group of ``texts`` that names that package.
    """

    id: str
    kind: Kind
    cause: str | None
    texts: tuple[tuple[str, re.Pattern[str]], ...]
    but_not: tuple[re.Pattern[str], ...]
    told_by: tuple[re.Pattern[str], ...]
    context: frozenset[str]
    no_context: frozenset[str]
    specificity: int
    confidence: Confidence
    meaning: str
    also: tuple[str, ...]
    look_next: tuple[str, ...]
    fix: tuple[str, ...]
    fix_elsewhere: tuple[str, ...]
    pinned: str | None

    def search(self, line: str) -> re.Match[str] | None:
        """Find the pattern in one line."""
        for literal, text in self.texts:
            if literal in line:
                match = text.search(line)
                if match is not None and not any(other.search(line) for other in self.but_not):
                    return match
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Something that a text shows beside its error."""

    name: str
    texts: tuple[tuple[str, re.Pattern[str]], ...]

    def shown_by(self, line: str) -> bool:
        """Whether this line shows it."""
        return any(literal in line and text.search(line) for literal, text in self.texts)


@dataclass(frozen=True)
class Knowledge:
    """Everything in ``checks/errors``."""

    patterns: tuple[Pattern, ...]
    contexts: tuple[Context, ...]

    @cached_property
    def wanted(self) -> frozenset[tuple[str, re.Pattern[str]]]:
        """Every regular expression with the string that whatever it matches must hold."""
        of_patterns = (pair for pattern in self.patterns for pair in pattern.texts)
        of_contexts = (pair for context in self.contexts for pair in context.texts)
        return frozenset((*of_patterns, *of_contexts))

    @cached_property
    def literals(self) -> Literals[Pattern | Context]:
        """Whose string a line holds may match it."""
        everything: tuple[Pattern | Context, ...] = (*self.patterns, *self.contexts)
        return Literals((literal, one) for one in everything for literal, _ in one.texts)


@cache
def knowledge() -> Knowledge:
    """Read and validate ``checks/errors``.

    Raises:
        UsageError: a file is malformed; names the pattern.
    """
    folder = resources.checks() / "errors"
    contexts = _contexts(folder / "contexts.toml")
    names = {context.name for context in contexts}
    patterns: dict[str, Pattern] = {}
    for path in sorted(folder.glob("*.toml")):
        if path.name in ("causes.toml", "contexts.toml"):
            continue
        for table in catalogue.read_toml(path, TypeAdapter(_File)).pattern:
            if table.id in patterns:
                raise UsageError(f"pattern '{table.id}' stands twice", where=path)
            patterns[table.id] = _pattern(table, names, path)
    return Knowledge(tuple(patterns.values()), contexts)


def _contexts(path: Path) -> tuple[Context, ...]:
    tables = catalogue.read_toml(path, TypeAdapter(dict[str, tuple[_Regex, ...]]))
    made = []
    for name, texts in tables.items():
        made.append(Context(name, _paired(texts, name, path)))
    return tuple(made)


def _pattern(table: _Pattern, contexts: set[str], path: Path) -> Pattern:
    causes = catalogue.causes()
    unknown = {name for name in (table.cause, *table.also) if name is not None} - set(causes)
    unknown |= {*table.context, *table.no_context} - contexts
    if unknown:
        raise UsageError(f"{table.id}: unknown cause or context {sorted(unknown)}", where=path)
    if (table.cause is None) == (table.kind is Kind.CAUSE):
        raise UsageError(f"{table.id}: a cause belongs to kind 'cause', and to no other", where=path)
    if table.kind is Kind.SYMPTOM and table.meaning is None:
        raise UsageError(f"{table.id}: a symptom needs a meaning", where=path)
    return Pattern(
        id=table.id,
        kind=table.kind,
        cause=table.cause,
        texts=_paired(table.text, table.id, path),
        but_not=tuple(map(re.compile, table.but_not)),
        told_by=tuple(map(re.compile, table.told_by)),
        context=frozenset(table.context),
        no_context=frozenset(table.no_context),
        specificity=table.specificity,
        confidence=table.confidence,
        meaning=table.meaning or (causes[table.cause] if table.cause else ""),
        also=table.also,
        look_next=table.look_next,
        fix=table.fix or (catalogue.cause_fixes(table.cause) if table.cause else ()),
        fix_elsewhere=table.fix_elsewhere,
        pinned=table.pinned,
    )


def _paired(texts: tuple[str, ...], name: str, path: Path) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Each regular expression with each of the strings of which a matching line must hold one."""
    pairs = []
    for text in texts:
        try:
            compiled = re.compile(text)
        except re.error as error:
            raise UsageError(f"{name}: not a regular expression: {error}", where=path) from error
        literals = required_literals(text)
        if min(map(len, literals), default=0) < MIN_LITERAL:
            raise UsageError(f"{name}: no literal of {MIN_LITERAL} characters in '{text}'", where=path)
        pairs += [(literal, compiled) for literal in literals]
    return tuple(pairs)


def required_literals(regex: str) -> tuple[str, ...]:
    r"""Give strings of which everything that ``regex`` matches must hold one; empty where there are none.

    Of all such sets the one whose shortest string is longest: ``[Ff]ailed to (?:load|open) x`` requires
    ``ailed to ``, ``\bcu(?:Init|LaunchKernel)`` one of ``Init`` and ``LaunchKernel``. Reads the syntax that the
    patterns use; what it does not know it never takes for a literal.
    """
    return _alternatives(regex, 0)[0]


def _alternatives(regex: str, at: int) -> tuple[tuple[str, ...], int]:
    """What the alternatives from ``at`` on require, and where they end: at a closing bracket or the end."""
    every: list[tuple[str, ...]] = []
    while True:
        found, at = _sequence(regex, at)
        every.append(found)
        if at >= len(regex) or regex[at] == ")":
            break
        at += 1  # the bar
    joined = tuple(dict.fromkeys(literal for found in every for literal in found))
    return (joined if all(every) and len(joined) <= _MAX_ALTERNATIVES else ()), at


def _sequence(regex: str, at: int) -> tuple[tuple[str, ...], int]:
    """What a sequence without a bar requires, and where it ends."""
    sets: list[tuple[str, ...]] = []
    run = ""
    while at < len(regex) and regex[at] not in "|)":
        literal, inner, at = _atom(regex, at)
        optional, repeated, at = _quantifier(regex, at)
        if literal and not optional:
            run += literal
            if not repeated:
                continue
        sets.append((run,))
        run = ""
        if inner and not optional:
            sets.append(inner)
    sets.append((run,))
    best = max(sets, key=lambda found: (min(map(len, found)), -len(found)))
    return (best if all(best) else ()), at


def _atom(regex: str, at: int) -> tuple[str, tuple[str, ...], int]:
    """The literal that stands at ``at``, or what the group there requires, and where it ends."""
    char = regex[at]
    if char == "\\":
        escaped = regex[at + 1]
        return ("" if escaped.isalnum() else escaped), (), at + 2
    if char == "[":
        return "", (), _end_of_class(regex, at) + 1
    if char == "(":
        opening = _OPENING.match(regex, at)
        assert opening is not None
        inner, at = _alternatives(regex, opening.end())
        return "", (() if opening["around"] else inner), at + 1
    return ("" if char in ".^$" else char), (), at + 1


def _quantifier(regex: str, at: int) -> tuple[bool, bool, int]:
    """Whether a quantifier at ``at`` admits nothing, whether there is one at all, and where it ends."""
    found = _QUANTIFIER.match(regex, at)
    if found is None:
        return False, False, at
    return found[0][0] != "+", True, found.end()


def _end_of_class(regex: str, position: int) -> int:
    """Give the index of the ``]`` that closes the class which opens at ``position``."""
    position += 1
    if regex[position] == "^":
        position += 1
    if regex[position] == "]":  # as the first member it closes nothing
        position += 1
    while regex[position] != "]":
        position += 2 if regex[position] == "\\" else 1
    return position

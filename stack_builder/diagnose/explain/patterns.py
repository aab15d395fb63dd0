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
from stack_builder.errors import UsageError

MIN_LITERAL = 4  # characters that every line which a pattern matches must hold in one piece

_Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Confidence(StrEnum):
    """How far the text alone carries."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Kind(StrEnum):
    """What a line is in the story of a failure."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    DEATH = "death"
    HARMLESS = "harmless"


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class _Pattern(_Table):
    id: _Name
    kind: Kind = Kind.CAUSE
    cause: str | None = None
    text: Annotated[tuple[_Text, ...], Field(min_length=1)]
    but_not: tuple[_Text, ...] = ()
    context: tuple[str, ...] = ()
    no_context: tuple[str, ...] = ()
    specificity: Annotated[int, Field(ge=1, le=100)] = 50
    confidence: Confidence = Confidence.LIKELY
    meaning: _Text | None = None
    also: tuple[str, ...] = ()
    look_next: tuple[_Text, ...] = ()
    fix: tuple[_Text, ...] = ()
    source: _Text | None = None


class _File(_Table):
    pattern: tuple[_Pattern, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One known error text.

    Attributes:
        id: stable name, shown as evidence.
        kind: a cause, or a line that only follows from one.
        cause: name of ``causes.toml``; None unless ``kind`` is a cause.
        texts: any of them, found anywhere in a line, is a match; their groups fill ``meaning``.
        literals: for each of ``texts`` a string that a matching line must hold.
        but_not: a line that any of them matches is no match.
        context: contexts that the text as a whole must show.
        no_context: contexts that it must not show.
        specificity: 1 to 100; the more a text says by itself, the higher.
        confidence: how sure the cause is when it matches.
        meaning: what the line says, in a sentence.
        also: other causes that the same text can have.
        look_next: what decides between them.
        fix: what to do; the cause's own list where empty.
    """

    id: str
    kind: Kind
    cause: str | None
    texts: tuple[re.Pattern[str], ...]
    literals: tuple[str, ...]
    but_not: tuple[re.Pattern[str], ...]
    context: frozenset[str]
    no_context: frozenset[str]
    specificity: int
    confidence: Confidence
    meaning: str
    also: tuple[str, ...]
    look_next: tuple[str, ...]
    fix: tuple[str, ...]

    def search(self, line: str) -> re.Match[str] | None:
        """Find the pattern in one line."""
        for literal, text in zip(self.literals, self.texts, strict=True):
            if literal in line:
                match = text.search(line)
                if match is not None and not any(other.search(line) for other in self.but_not):
                    return match
        return None


@dataclass(frozen=True, slots=True)
class Context:
    """Something that a text shows beside its error."""

    name: str
    texts: tuple[re.Pattern[str], ...]
    literals: tuple[str, ...]

    def shown_by(self, line: str) -> bool:
        """Whether this line shows it."""
        return any(lit in line and text.search(line) for lit, text in zip(self.literals, self.texts, strict=True))


@dataclass(frozen=True)
class Knowledge:
    """Everything in ``checks/errors``."""

    patterns: tuple[Pattern, ...]
    contexts: tuple[Context, ...]

    @cached_property
    def wanted(self) -> frozenset[tuple[str, re.Pattern[str]]]:
        """Every regular expression with the string that whatever it matches must hold."""
        of_patterns = (pair for entry in self.patterns for pair in zip(entry.literals, entry.texts, strict=True))
        of_contexts = (pair for entry in self.contexts for pair in zip(entry.literals, entry.texts, strict=True))
        return frozenset((*of_patterns, *of_contexts))


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
    tables = catalogue.read_toml(path, TypeAdapter(dict[str, tuple[_Text, ...]]))
    made = []
    for name, texts in tables.items():
        compiled = _compiled(texts, name, path)
        made.append(Context(name, compiled, tuple(_literal(text, name, path) for text in texts)))
    return tuple(made)


def _pattern(table: _Pattern, contexts: set[str], path: Path) -> Pattern:
    causes = catalogue.causes()
    unknown = {name for name in (table.cause, *table.also) if name is not None} - set(causes)
    unknown |= {*table.context, *table.no_context} - contexts
    if unknown:
        raise UsageError(f"{table.id}: unknown cause or context {sorted(unknown)}", where=path)
    if (table.cause is None) == (table.kind is Kind.CAUSE):
        raise UsageError(f"{table.id}: a cause belongs to kind 'cause', and to no other", where=path)
    return Pattern(
        id=table.id,
        kind=table.kind,
        cause=table.cause,
        texts=_compiled(table.text, table.id, path),
        literals=tuple(_literal(text, table.id, path) for text in table.text),
        but_not=_compiled(table.but_not, table.id, path),
        context=frozenset(table.context),
        no_context=frozenset(table.no_context),
        specificity=table.specificity,
        confidence=table.confidence,
        meaning=table.meaning or (causes[table.cause] if table.cause else ""),
        also=table.also,
        look_next=table.look_next,
        fix=table.fix or (catalogue.cause_fixes(table.cause) if table.cause else ()),
    )


def _compiled(texts: tuple[str, ...], name: str, path: Path) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(text) for text in texts)
    except re.error as error:
        raise UsageError(f"{name}: not a regular expression: {error}", where=path) from error


def _literal(regex: str, name: str, path: Path) -> str:
    literal = required_literal(regex)
    if len(literal) < MIN_LITERAL:
        raise UsageError(f"{name}: no literal of {MIN_LITERAL} characters in '{regex}'", where=path)
    return literal


def required_literal(regex: str) -> str:
    """Give the longest string that everything ``regex`` matches must hold.

    Reads only what stands outside groups, so it never claims too much: ``undefined symbol: (cu[A-Z])`` requires
    ``undefined symbol: ``. An alternation outside groups requires nothing.
    """
    best = run = ""
    depth = position = 0
    while position < len(regex):
        char = regex[position]
        literal = ""
        if char == "\\":
            position += 1
            escaped = regex[position]
            literal = "" if escaped.isalnum() else escaped
        elif char == "[":
            position = _end_of_class(regex, position)
        elif char == "{":
            position = regex.index("}", position)
        elif char == "|" and depth == 0:
            return ""
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char not in "^$.*+?|":
            literal = char
        optional = regex[position + 1 : position + 2] in ("?", "*", "{")
        if literal and not depth and not optional:
            run += literal
            if regex[position + 1 : position + 2] != "+":
                position += 1
                continue
        best, run = max(best, run, key=len), ""
        position += 1
    return max(best, run, key=len)


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

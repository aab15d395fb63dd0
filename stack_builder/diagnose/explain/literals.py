"""Which of many strings a text holds.

Python's ``re`` tries the alternatives of an expression one after another wherever it stands. The engine that pydantic
holds its ``pattern`` constraints against (the Rust crate regex) makes one automaton of them all, which reads 400 MB in
a second whether there are ten strings or a thousand. It only says whether there is a match, so a text is asked as a
whole, then its lines, and only of a line that holds any of the strings is it asked which.

It is that fast on ASCII alone: among other characters its automaton gives up for a way that takes forty times as long.
So both strings and texts are put to it with a ``?`` for each other character, which finds too much at worst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Generic, TypeVar

from pydantic_core import SchemaValidator, core_schema

T = TypeVar("T")
_PARTS = 4  # of a set of strings, each with an automaton of its own
_GROUP = 16  # strings that are tried one by one where one of them is known to be there
_DIGITS = b"0123456789"
_MAX_SKELETONS = 50_000


class Literals(Generic[T]):
    """Strings with a value each.

    Args:
        rows: string and value; a string may come with several values.
    """

    def __init__(self, rows: Iterable[tuple[str, T]]) -> None:
        self._values: dict[str, list[T]] = {}
        for literal, value in rows:
            self._values.setdefault(literal, []).append(value)
        self._seen: dict[bytes, tuple[str, ...]] = {}

    @cached_property
    def any_in(self) -> Callable[[str], bool]:
        """Tells whether a text may hold one of the strings: of an ASCII text exactly, else at least where it does."""
        return _tester(self._values)

    def held(self, text: str) -> list[T]:
        """The values of the strings that a text holds.

        Lines of a log often differ in their numbers alone, and are looked at without their digits once.
        """
        skeleton = text.encode("utf-8", "replace").translate(None, _DIGITS)
        possible = self._seen.get(skeleton)
        if possible is None:
            if len(self._seen) >= _MAX_SKELETONS:
                self._seen.clear()
            possible = self._seen[skeleton] = self._possible(skeleton.decode("utf-8", "replace"))
        return [value for literal in possible if literal in text for value in self._values[literal]]

    def _possible(self, skeleton: str) -> tuple[str, ...]:
        """The strings of which a text that was stripped of its digits may hold all."""
        return tuple(self._stripped.held(skeleton))

    @cached_property
    def _stripped(self) -> _Branch:
        return _Branch([(literal.translate(_WITHOUT_DIGITS), literal) for literal in self._values])


_WITHOUT_DIGITS = str.maketrans("", "", _DIGITS.decode())


class _Branch:
    """Strings that a text is asked for, and parts of them, each asked for in turn: the way to the few that it holds."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        self._rows = rows  # what is looked for, and what that stands for

    def held(self, text: str) -> Iterator[str]:
        """Yield what the strings stand for that a text holds."""
        if len(self._rows) <= _GROUP:
            yield from (literal for string, literal in self._rows if string in text)
            return
        for any_in, part in self._parts:
            if any_in(text):
                yield from part.held(text)

    @cached_property
    def _parts(self) -> list[tuple[Callable[[str], bool], _Branch]]:
        size = -(-len(self._rows) // _PARTS)
        parts = [self._rows[at : at + size] for at in range(0, len(self._rows), size)]
        return [(_tester(string for string, _ in part), _Branch(part)) for part in parts]


def _tester(literals: Iterable[str]) -> Callable[[str], bool]:
    """Make the automaton.

    The expression is kept short: pydantic copies it into the error that it prepares wherever nothing matches.
    """
    alternatives = "|".join(re.sub(r"[^\w ]", _escaped, _ascii(literal), flags=re.ASCII) for literal in literals)
    if not alternatives:
        return lambda _text: False
    found = SchemaValidator(core_schema.str_schema(pattern=alternatives, regex_engine="rust-regex")).isinstance_python
    return lambda text: found(_ascii(text))


def _ascii(text: str) -> str:
    return text if text.isascii() else text.encode("ascii", "replace").decode("ascii")


def _escaped(char: re.Match[str]) -> str:
    return f"\\{char[0]}" if char[0].isprintable() else f"\\x{{{ord(char[0]):x}}}"

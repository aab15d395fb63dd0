"""Which of many strings a text holds.

Python's ``re`` tries the alternatives of an expression one after another wherever it stands. The engine that pydantic
holds its ``pattern`` constraints against (the Rust crate regex) makes one automaton of them all, which reads 400 MB in
a second whether there are ten strings or a thousand. It only says whether there is a match, so a text is asked as a
whole, then its lines, and only of a line that holds any of the strings is it asked which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Generic, TypeVar

from pydantic_core import SchemaValidator, core_schema

T = TypeVar("T")
_GROUP = 64  # strings that are tried one by one where one of them is known to be there
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
        """Tells whether a text holds one of the strings."""
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
        return tuple(
            literal
            for any_in, group in self._groups
            if any_in(skeleton)
            for without_digits, literal in group
            if without_digits in skeleton
        )

    @cached_property
    def _groups(self) -> list[tuple[Callable[[str], bool], list[tuple[str, str]]]]:
        stripped = [(literal.translate(_WITHOUT_DIGITS), literal) for literal in self._values]
        groups = [stripped[at : at + _GROUP] for at in range(0, len(stripped), _GROUP)]
        return [(_tester(without_digits for without_digits, _ in group), group) for group in groups]


_WITHOUT_DIGITS = str.maketrans("", "", _DIGITS.decode())


def _tester(literals: Iterable[str]) -> Callable[[str], bool]:
    """Make the automaton."""
    alternatives = "|".join("".join(f"\\x{{{ord(char):x}}}" for char in literal) for literal in literals)
    if not alternatives:
        return lambda _text: False
    return SchemaValidator(core_schema.str_schema(pattern=alternatives, regex_engine="rust-regex")).isinstance_python

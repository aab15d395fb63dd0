"""Which of many strings a text holds.

Python's ``re`` tries the alternatives of an expression one after another wherever it stands. The engine that pydantic
holds its ``pattern`` constraints against (the Rust crate regex) makes one automaton of them all, which reads 400 MB in
a second whether there are ten strings or a thousand. It only says whether there is a match, so a text is asked as a
whole, then its lines; which of the strings a line holds is looked up by their bytes, four at a time.

The automaton is that fast while it stays small. A state of it is a row as long as the alphabet; above 64 bytes the rows
double, and the engine throws states away and makes them anew for ever, at a tenth of the speed. Among characters that
are not ASCII it gives the automaton up altogether. So both strings and texts are put to it in an alphabet of 60 bytes,
the letters and eight for all the rest, which finds too much at worst.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from string import ascii_letters
from struct import unpack_from
from typing import Generic, TypeVar

from pydantic_core import SchemaValidator, core_schema

T = TypeVar("T")
_GRAM = 4  # bytes, the size of struct's "I"; few strings are shorter without their digits
_DIGITS = b"0123456789"
_MAX_SKELETONS, _MAX_SKELETON = 50_000, 1000  # lines, and bytes of one: longer ones seldom come twice


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
        """Tells whether a text may hold one of the strings: at least where it does."""
        return _tester(self._values)

    def held(self, text: str) -> list[T]:
        """The values of the strings that a text holds.

        Lines of a log often differ in their numbers alone, and are looked at without their digits once.
        """
        skeleton = _skeleton(text)
        possible = self._seen.get(skeleton)
        if possible is None:
            possible = tuple(self._stripped.possible(skeleton))
            if len(self._seen) >= _MAX_SKELETONS:
                self._seen.clear()
            if len(skeleton) <= _MAX_SKELETON:
                self._seen[skeleton] = possible
        return [value for literal in possible if literal in text for value in self._values[literal]]

    @cached_property
    def _stripped(self) -> _Grams:
        return _Grams([(_skeleton(literal), literal) for literal in self._values])


class _Grams:
    """Strings by four of their bytes, so that of a text each four bytes are looked up once, however many strings.

    Args:
        rows: what is looked for, and what that stands for.
    """

    def __init__(self, rows: list[tuple[bytes, str]]) -> None:
        common = Counter(gram for string, _ in rows for gram in set(_grams(string)))
        self._short = [row for row in rows if len(row[0]) < _GRAM]
        self._by_gram: dict[int, list[tuple[bytes, str]]] = {}
        for row in rows:
            if len(row[0]) >= _GRAM:
                rarest = min(_grams(row[0]), key=common.__getitem__)  # says most
                self._by_gram.setdefault(rarest, []).append(row)
        self._known = frozenset(self._by_gram)

    def possible(self, text: bytes) -> Iterator[str]:
        """Yield what the strings stand for that a text holds."""
        shared = self._known.intersection(_grams(text))
        for string, literal in chain(self._short, *map(self._by_gram.__getitem__, shared)):
            if string in text:
                yield literal


def _skeleton(text: str) -> bytes:
    return text.encode("utf-8", "replace").translate(None, _DIGITS)


def _grams(text: bytes) -> Iterable[int]:
    """Every four bytes in a row, as a number: read as words from each of four offsets, which no loop is as fast as."""
    return chain.from_iterable(
        unpack_from(f"{(len(text) - offset) // _GRAM}I", text, offset) for offset in range(min(_GRAM, len(text)))
    )


def _alphabet() -> bytes:
    rest = {"@": " ", "[": "0", "\\": "1", "]": "23456789", "^": ".", "_": ":", "`": "()[]<>\"'`"}
    codes = dict.fromkeys(range(256), ord("{"))
    codes |= {ord(letter): ord(letter) for letter in ascii_letters}
    codes |= {ord(char): ord(code) for code, chars in rest.items() for char in chars}
    return bytes(codes.values())


_ALPHABET = _alphabet()  # @A-Z[\]^_`a-z{ and nothing else


def _reduced(text: str) -> str:
    return text.encode("ascii", "replace").translate(_ALPHABET).decode("ascii")


def _tester(literals: Iterable[str]) -> Callable[[str], bool]:
    """Make the automaton.

    The expression is kept short: pydantic copies it into the error that it prepares wherever nothing matches.
    """
    alternatives = "|".join({re.sub(r"[\[\\\]^`{]", r"\\\g<0>", _reduced(literal)): None for literal in literals})
    if not alternatives:
        return lambda _text: False
    found = SchemaValidator(core_schema.str_schema(pattern=alternatives, regex_engine="rust-regex")).isinstance_python
    return lambda text: found(_reduced(text))

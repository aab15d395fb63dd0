"""Reads a text of any size once and keeps the lines that can matter.

A log of a busy server is mostly lines that do not. Each of the known error texts has strings of which whatever it
matches must hold one, and so has an exception: what holds none of them is passed over, 64 KiB at a time
(:mod:`.literals`). Only lines that hold one are tried with the regular expressions it belongs to. Memory is bounded by
:data:`MAX_KEPT` and :data:`MAX_CHARACTERS`.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import BinaryIO

from stack_builder.diagnose.explain.literals import Literals

CHUNK = 1 << 16  # bytes read at once
MAX_LINE = 16 << 10  # characters; what a line says beyond is ignored
MAX_KEPT = 30_000  # lines kept from the start, and as many from the end
MAX_CHARACTERS = 16 << 20  # of those lines at either end
_BEFORE, _AFTER = 6, 60  # lines kept around the head of an exception
_SIGNS = ("Traceback (most recent call last)", "Error", "Exception")  # what _EXCEPTION matches holds one of them
_EXCEPTION = re.compile(r"Traceback \(most recent call last\)|(?:Error|Exception)(?::|\s*$)")
_NONE = re.compile(r"(?!)")  # for lines that matter as exceptions alone
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


Wanted = frozenset[tuple[str, re.Pattern[str]]]
"""Regular expressions, each with a string that whatever it matches must hold."""


@dataclass(frozen=True, slots=True)
class Line:
    """One kept line: its number in the text, from 1, and what it says without colours and line end."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Sifted:
    """What is left of a text.

    Attributes:
        lines: in order; lines that cannot matter are missing.
        total: lines of the text.
        size: in bytes.
        dropped: lines that mattered but were dropped again, from the middle, to bound memory and time.
        last: the last lines that are not empty, whatever they say.
    """

    lines: tuple[Line, ...]
    total: int
    size: int
    dropped: int
    last: tuple[Line, ...]


def sift(stream: BinaryIO, wanted: Wanted) -> Sifted:
    """Read ``stream`` to its end and keep each line that one of ``wanted`` matches, and exceptions with context."""
    literals = _literals(wanted)
    kept = _Ends()
    last: deque[Line] = deque(maxlen=3)
    before: dict[int, str] = {}  # the last lines of the piece before that were not kept, by offset, from -1 down
    total = size = owed = 0
    for raw, ended in _pieces(stream):
        size += len(raw) + ended
        piece = _text(raw)
        marks: set[int] = set()
        if owed or literals.any_in(piece):
            lines = piece.split("\n")
            marks, owed = _marks(lines, literals, before.keys(), owed)
            kept.add([(total + at + 1, lines[at] if at >= 0 else before[at]) for at in sorted(marks)])
        breaks = raw.count(b"\n")
        ends = piece.rsplit("\n", 50)[-50:]
        recent = [(offset, end) for offset, end in enumerate(ends, breaks + 1 - len(ends)) if end.strip()]
        last.extend(Line(total + offset + 1, _bare(end)) for offset, end in recent[-3:])
        total += breaks + ended
        before = {
            at: end for at, end in enumerate(ends[-_BEFORE:], -min(_BEFORE, len(ends))) if breaks + 1 + at not in marks
        }
    lines_kept = kept.lines()
    return Sifted(lines_kept, total, size, kept.added - len(lines_kept), tuple(last))


class _Ends:
    """The first and the last of many lines, added piece by piece as (number, text).

    Attributes:
        added: how many.
    """

    def __init__(self) -> None:
        self.added = 0
        self._head: list[tuple[int, str]] = []
        self._room = MAX_CHARACTERS
        self._tail: deque[list[tuple[int, str]]] = deque()
        self._in_tail = self._characters = 0

    def add(self, lines: list[tuple[int, str]]) -> None:
        """Add what a piece has; the tail is cut back by whole pieces, since most lines of a long text only pass."""
        self.added += len(lines)
        if len(self._head) < MAX_KEPT and self._room > 0:
            fitting = lines[: MAX_KEPT - len(self._head)]
            self._head += fitting
            self._room -= _characters(fitting)
            lines = lines[len(fitting) :]
        self._tail.append(lines)
        self._in_tail += len(lines)
        self._characters += _characters(lines)
        while self._in_tail - len(self._tail[0]) >= MAX_KEPT or self._characters > MAX_CHARACTERS + CHUNK:
            gone = self._tail.popleft()
            self._in_tail -= len(gone)
            self._characters -= _characters(gone)

    def lines(self) -> tuple[Line, ...]:
        """Those that are left, in order."""
        tail = [line for piece in self._tail for line in piece][-MAX_KEPT:]
        return tuple(Line(number, _bare(text)) for number, text in (*self._head, *tail))


def _characters(lines: list[tuple[int, str]]) -> int:
    return sum(map(len, map(itemgetter(1), lines)))


def _marks(
    lines: list[str], literals: Literals[re.Pattern[str]], before: Collection[int], owed: int
) -> tuple[set[int], int]:
    """Give the offsets of the lines to keep, and how many lines the next piece owes to an exception in this one.

    Negative offsets are lines of the piece before, of which those in ``before`` can be had.
    """
    marked = min(owed, len(lines))  # all lines below this that an exception keeps are in
    marks = set(range(marked))
    owed -= marked
    any_in = literals.any_in
    for offset, raw in enumerate(lines):
        # a line that is kept anyway only matters where another exception begins in it
        if not (any_in(raw) if offset >= marked else "Error" in raw or "Exception" in raw or "Traceback" in raw):
            continue
        line = _bare(raw)
        if _EXCEPTION.search(line):
            end = min(offset + _AFTER, len(lines))
            # of a log that is all exceptions each line is added once, not sixty times
            marks.update(range(max(offset - _BEFORE, 0), offset), range(max(offset, marked), end))
            marks.update(at for at in range(offset - _BEFORE, 0) if at in before)
            marked = max(marked, end)
            owed = max(owed, offset + _AFTER - len(lines))
        elif offset >= marked and any(regex.search(line) for regex in literals.held(line)):
            marks.add(offset)
    return marks, owed


@lru_cache(maxsize=4)
def _literals(wanted: Wanted) -> Literals[re.Pattern[str]]:
    return Literals((*wanted, *((sign, _NONE) for sign in _SIGNS)))


def _pieces(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces without their last newline, and whether they had one: a line without end comes in several."""
    rest = b""
    for data in _utf8(stream):
        rest += data
        end = rest.rfind(b"\n")
        if end >= 0:
            yield rest[:end], True
            rest = rest[end + 1 :]
        elif len(rest) > CHUNK:
            yield rest, False
            rest = b""
    if rest:
        yield rest, True


def _utf8(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the text as it stands, or as UTF-8 where a byte order mark says UTF-16 (a shell's redirection)."""
    data = stream.read(CHUNK)
    if data[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        while data:
            yield data
            data = stream.read(CHUNK)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while data:
        yield decoder.decode(data).encode("utf-8", "replace")
        data = stream.read(CHUNK)


def _text(raw: bytes) -> str:
    """Without colours."""
    return (_ANSI.sub(b"", raw) if b"\x1b" in raw else raw).decode("utf-8", "replace")


def _bare(line: str) -> str:
    return line[:MAX_LINE].strip("\r\n\ufeff")

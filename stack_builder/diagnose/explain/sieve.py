"""Reads a text of any size once and keeps the lines that can matter.

A log of a busy server is mostly lines that do not, and there are two ways not to look at them one by one. Where lines
differ in their numbers alone, what is left of a line without digits (its skeleton) is looked at only the first time
that it is seen. Where they do not, a piece of a megabyte is looked at as a whole: as integers, one for every eight and
every four bytes, it tells in bulk which literals of the known error texts it can hold at all, and only those are
searched for. Only lines that hold a literal are tried with its regular expressions. Memory is bounded by
:data:`MAX_KEPT`.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

CHUNK = 1 << 20  # bytes read at once
MAX_LINE = 16 << 10  # bytes; what a line says beyond is ignored
MAX_KEPT = 30_000  # lines kept from the start, and as many from the end
_BEFORE, _AFTER = 6, 60  # lines kept around the head of an exception
_SIGNS = ("Traceback (most recent call last)", "Error", "Exception")  # what _EXCEPTION matches holds one of them
_DIGITS = b"0123456789"
_SAMPLE = 32 << 10  # bytes by which a piece is judged
_MAX_SKELETONS = 50_000
_NONE = re.compile(r"(?!)")  # for lines that matter as exceptions alone
_EXCEPTION = re.compile(rb"Traceback \(most recent call last\)|(?:Error|Exception)(?::|\s*$)")
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
        dropped: lines that mattered but were dropped again, from the middle, to bound memory.
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
    head: list[Line] = []
    tail: deque[Line] = deque(maxlen=MAX_KEPT)
    last: deque[Line] = deque(maxlen=3)
    before: list[bytes] = []
    total = size = kept = owed = 0
    for raw, ended in _pieces(stream):
        size += len(raw) + ended
        piece = _ANSI.sub(b"", raw) if b"\x1b" in raw else raw
        hits = literals.hits(piece)
        if hits or owed:
            lines = piece.split(b"\n")
            marks, owed = _marks(hits, lines, len(before), owed)
            for offset in sorted(marks):
                line = Line(total + offset + 1, _text(lines[offset] if offset >= 0 else before[offset]))
                (head if len(head) < MAX_KEPT else tail).append(line)
                kept += 1
        breaks = piece.count(b"\n")
        ends = piece.rsplit(b"\n", 50)[-50:]
        recent = [
            (offset, text) for offset, end in enumerate(ends, breaks + 1 - len(ends)) if (text := _text(end)).strip()
        ]
        last.extend(Line(total + offset + 1, text) for offset, text in recent[-3:])
        total += breaks + ended
        before = ends[-_BEFORE:]
    return Sifted((*head, *tail), total, size, kept - len(head) - len(tail), tuple(last))


def _marks(hits: _Hits, lines: list[bytes], before: int, owed: int) -> tuple[set[int], int]:
    """Give the offsets of the lines to keep, and how many lines the next piece owes to an exception in this one.

    Negative offsets are lines of the piece before, of which ``before`` are at hand.
    """
    marks = set(range(min(owed, len(lines))))
    marked = min(owed, len(lines))  # all lines below this that an exception keeps are in
    owed = max(0, owed - len(lines))
    for offset, regexes in hits.items():
        raw = lines[offset][:MAX_LINE]
        if _NONE in regexes and _EXCEPTION.search(raw):
            end = min(offset + _AFTER, len(lines))
            # of a log that is all exceptions each line is added once, not sixty times
            marks.update(range(max(offset - _BEFORE, -before), min(offset, end)), range(max(offset, marked), end))
            marked = max(marked, end)
            owed = max(owed, offset + _AFTER - len(lines))
        elif offset not in marks:
            text = _text(raw)
            if any(regex.search(text) for regex in regexes):
                marks.add(offset)
    return marks, owed


_Hits = dict[int, list[re.Pattern[str]]]
"""Line of a piece, from 0, in ascending order: the regular expressions of which it holds a literal."""


class _Literals:
    """Finds the lines of a piece of text that hold one of many strings."""

    def __init__(self, wanted: Wanted) -> None:
        self._regexes: dict[bytes, list[re.Pattern[str]]] = {}
        for literal, regex in (*wanted, *((sign, _NONE) for sign in _SIGNS)):
            self._regexes.setdefault(literal.encode(), []).append(regex)
        self._by_skeleton: dict[bytes, list[bytes]] = {}
        self._short = []
        self._by_run: dict[int, dict[int, list[bytes]]] = {4: {}, 8: {}}
        for text in self._regexes:
            self._by_skeleton.setdefault(text.translate(None, _DIGITS), []).append(text)
            width = 8 if len(text) >= 15 else 4
            if len(text) < 7:
                self._short.append(text)
                continue
            for run in _rarest_runs(text, width):
                self._by_run[width].setdefault(run, []).append(text)
        self._runs = {width: frozenset(found) for width, found in self._by_run.items()}
        self._seen: dict[bytes, tuple[bytes, ...]] = {}

    def hits(self, piece: bytes) -> _Hits:
        """The lines of ``piece`` that hold a literal within their first :data:`MAX_LINE` bytes."""
        sample = piece[:_SAMPLE].translate(None, _DIGITS).split(b"\n")
        if len(set(sample)) < len(sample) // 8:
            return self._by_line(piece)
        return self._at_once(piece)

    def _by_line(self, piece: bytes) -> _Hits:
        """For lines that are alike: each skeleton is looked at once."""
        skeletons = piece.translate(None, _DIGITS).split(b"\n")
        if len(self._seen) > _MAX_SKELETONS:
            self._seen.clear()
        seen = self._seen
        for skeleton in set(skeletons).difference(seen):
            held = (literals for part, literals in self._by_skeleton.items() if part in skeleton)
            seen[skeleton] = tuple(literal for literals in held for literal in literals)
        offsets = [offset for offset, skeleton in enumerate(skeletons) if seen[skeleton]]
        lines = piece.split(b"\n") if offsets else []
        hits: _Hits = {}
        for offset in offsets:
            line = lines[offset][:MAX_LINE]
            held_too = [regex for text in seen[skeletons[offset]] if text in line for regex in self._regexes[text]]
            if held_too:
                hits[offset] = held_too
        return hits

    def _at_once(self, piece: bytes) -> _Hits:
        """For lines that are not: each literal that can be there is searched for in all of them together."""
        at: dict[int, list[re.Pattern[str]]] = {}
        for literal in self._possible(piece):
            start = piece.find(literal)
            while start >= 0:
                line = piece.rfind(b"\n", 0, start) + 1
                if start + len(literal) <= line + MAX_LINE:
                    at.setdefault(line, []).extend(self._regexes[literal])
                end = piece.find(b"\n", start)
                start = piece.find(literal, end) if end >= 0 else -1
        hits: _Hits = {}
        number = counted = 0
        for line in sorted(at):
            number += piece.count(b"\n", counted, line)
            counted = line
            hits[number] = at[line]
        return hits

    def _possible(self, piece: bytes) -> set[bytes]:
        """The literals that can stand in it: those that do, and a few others.

        One of 15 bytes or more covers eight bytes from some multiple of eight on, wherever it stands, and one of seven
        or more likewise four. The shortest are not worth it.
        """
        found = set(self._short)
        whole = memoryview(piece + bytes(-len(piece) % 8))
        for width, integers in ((4, whole.cast("I")), (8, whole.cast("Q"))):
            for run in self._runs[width].intersection(integers):
                found.update(self._by_run[width][run])
        return found


def _rarest_runs(literal: bytes, width: int) -> list[int]:
    """As many runs of ``width`` bytes, one behind the other, as there are ways to lie across multiples of ``width``.

    Those that ordinary text holds least often, judged by their letters; as integers of this machine's byte order.
    """
    commonness = {letter: -rank for rank, letter in enumerate(b" etaoinsrhldcumfpgwybvkxjqz")}
    cuts = [literal[at : at + width] for at in range(len(literal) - width + 1)]
    weights = [sum(commonness.get(byte, -40) for byte in cut) for cut in cuts]
    best = min(range(len(cuts) - width + 1), key=lambda start: max(weights[start : start + width]))
    return [int.from_bytes(cut, sys.byteorder) for cut in cuts[best : best + width]]


@lru_cache(maxsize=4)
def _literals(wanted: Wanted) -> _Literals:
    return _Literals(wanted)


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
    return _ANSI.sub(b"", raw[:MAX_LINE]).decode("utf-8", "replace").strip("\r\n\ufeff")

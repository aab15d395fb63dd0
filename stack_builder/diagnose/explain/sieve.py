"""Reads a text of any size once and keeps the lines that can matter.

A log of a busy server is mostly lines that differ in their numbers alone. So a chunk loses its digits in one go, and
what is left of each line (its skeleton) is looked at only the first time it is seen: first for a few short strings
that cover all literals of the patterns, then for the literals themselves. Memory is bounded by :data:`MAX_KEPT`.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

CHUNK = 2 << 20  # bytes read at once
MAX_LINE = 64 << 10  # bytes; what a line says beyond is ignored
MAX_KEPT = 30_000  # lines kept from the start, and as many from the end
_MAX_SKELETONS = 50_000
_BEFORE, _AFTER = 6, 60  # lines kept around the head of an exception
_DIGITS = b"0123456789"
_TRACEBACK = b"Traceback (most recent call last)"
_EXCEPTION = re.compile(rb"Traceback \(most recent call last\)|(?:Error|Exception)(?::|\s*$)")
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


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


def sift(stream: BinaryIO, literals: Iterable[str]) -> Sifted:
    """Read ``stream`` to its end and keep each line that holds one of ``literals``, and exceptions with context."""
    test = _Test(literals)
    head: list[Line] = []
    tail: deque[Line] = deque(maxlen=MAX_KEPT)
    last: deque[Line] = deque(maxlen=3)
    before: list[bytes] = []
    total = size = kept = owed = 0
    for piece, ended in _pieces(stream):
        size += len(piece) + ended
        lines = piece.split(b"\n")
        skeletons = piece.translate(None, _DIGITS).split(b"\n")
        marks, owed = _marks(test, lines, skeletons, len(before), owed)
        for offset in sorted(marks):
            line = Line(total + offset + 1, _text(lines[offset] if offset >= 0 else before[offset]))
            (head if len(head) < MAX_KEPT else tail).append(line)
            kept += 1
        recent = [(offset, text) for offset, raw in enumerate(lines[-50:], len(lines[:-50])) if (text := _text(raw))]
        last.extend(Line(total + offset + 1, text) for offset, text in recent[-3:])
        total += len(lines) if ended else len(lines) - 1
        before = lines[-_BEFORE:]
    return Sifted((*head, *tail), total, size, kept - len(head) - len(tail), tuple(last))


def _marks(test: _Test, lines: list[bytes], skeletons: list[bytes], before: int, owed: int) -> tuple[set[int], int]:
    """Give the offsets of the lines to keep, and how many lines the next piece owes to an exception in this one.

    Negative offsets are lines of the piece before, of which ``before`` are at hand.
    """
    marks = set(range(min(owed, len(lines))))
    owed = max(0, owed - len(lines))
    for offset, skeleton in enumerate(skeletons):
        if test.interesting(skeleton):
            marks.add(offset)
            if _EXCEPTION.search(lines[offset][:MAX_LINE]):
                marks.update(range(max(offset - _BEFORE, -before), min(offset + _AFTER, len(lines))))
                owed = max(owed, offset + _AFTER - len(lines))
    return marks, owed


class _Test:
    """Whether a line with this skeleton may hold one of the literals; remembers its answers."""

    def __init__(self, literals: Iterable[str]) -> None:
        wanted = (*(text.encode() for text in literals), _TRACEBACK, b"Error", b"Exception")
        self._literals = sorted({literal.translate(None, _DIGITS) for literal in wanted})
        self._triggers = _cover(self._literals)
        self._seen: dict[bytes, bool] = {}

    def interesting(self, skeleton: bytes) -> bool:
        answer = self._seen.get(skeleton)
        if answer is None:
            if len(self._seen) >= _MAX_SKELETONS:
                self._seen.clear()
            plain = _ANSI.sub(b"", skeleton) if b"\x1b" in skeleton else skeleton
            answer = any(t in plain for t in self._triggers) and any(lit in plain for lit in self._literals)
            if len(skeleton) < MAX_LINE:
                self._seen[skeleton] = answer
        return answer


def _cover(literals: list[bytes], size: int = 4) -> list[bytes]:
    """Choose few strings of ``size`` bytes such that each literal holds one; greedily, the commonest first."""
    pieces = {lit: {lit[i : i + size] for i in range(max(1, len(lit) - size + 1))} for lit in literals}
    left = set(literals)
    chosen: list[bytes] = []
    while left:
        counts: dict[bytes, int] = {}
        for literal in left:
            for piece in pieces[literal]:
                counts[piece] = counts.get(piece, 0) + 1
        best = max(counts, key=lambda piece: (counts[piece], len(piece), piece))
        chosen.append(best)
        left = {literal for literal in left if best not in pieces[literal]}
    return chosen


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

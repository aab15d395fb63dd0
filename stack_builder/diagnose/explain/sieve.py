"""Reads a text of any size once and keeps the lines that can matter.

A log of a busy server is mostly lines that differ in their numbers alone. So a chunk loses its digits in one go, and
what is left of each line (its skeleton) is looked at only the first time it is seen: which patterns hold a literal
that stands in it? Only those are tried on the lines themselves. Memory is bounded by :data:`MAX_KEPT`.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

CHUNK = 2 << 20  # bytes read at once
MAX_LINE = 16 << 10  # bytes; what a line says beyond is ignored
MAX_KEPT = 30_000  # lines kept from the start, and as many from the end
_MAX_SKELETONS = 50_000
_BEFORE, _AFTER = 6, 60  # lines kept around the head of an exception
_DIGITS = b"0123456789"
_RUN = 4  # bytes
_SIGNS = ("Traceback (most recent call last)", "Error", "Exception")  # what _EXCEPTION matches holds one of them
_NONE = re.compile(r"(?!)")  # for lines that matter as exceptions alone
_EXCEPTION = re.compile(rb"Traceback \(most recent call last\)|(?:Error|Exception)(?::|\s*$)")
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


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
    test = _test_for(wanted)
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
        recent = [
            (offset, text) for offset, raw in enumerate(lines[-50:], len(lines[:-50])) if (text := _text(raw)).strip()
        ]
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
    answers = test.answers(skeletons)
    for offset in [offset for offset, skeleton in enumerate(skeletons) if answers[skeleton]]:
        raw = lines[offset][:MAX_LINE]
        held = _held(raw, answers[skeletons[offset]])
        if _NONE in held and _EXCEPTION.search(raw):
            marks.update(range(max(offset - _BEFORE, -before), min(offset + _AFTER, len(lines))))
            owed = max(owed, offset + _AFTER - len(lines))
        elif held and offset not in marks:
            text = _text(raw)
            if any(regex.search(text) for regex in held):
                marks.add(offset)
    return marks, owed


_Candidates = tuple[tuple[bytes, re.Pattern[str]], ...]


def _held(raw: bytes, candidates: _Candidates) -> list[re.Pattern[str]]:
    """Those of the candidates whose literal, digits included, stands in the line."""
    plain = _ANSI.sub(b"", raw) if b"\x1b" in raw else raw
    return [regex for literal, regex in candidates if literal in plain]


class _Test:
    """Which regular expressions a line with a given skeleton may match; remembers its answers.

    A skeleton seen for the first time is cut into all its runs of four bytes, read as integers in bulk. Each literal
    has one run, its rarest, under which it is looked up; only then it is searched for.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted: dict[bytes, list[tuple[bytes, re.Pattern[str]]]] = {}
        for literal, regex in (*wanted, *((sign, _NONE) for sign in _SIGNS)):
            encoded = literal.encode()
            self._wanted.setdefault(encoded.translate(None, _DIGITS), []).append((encoded, regex))
        self._by_run: dict[int, list[bytes]] = {}
        for skeleton in self._wanted:
            if len(skeleton) >= _RUN:
                self._by_run.setdefault(_rarest_run(skeleton), []).append(skeleton)
        self._short = [skeleton for skeleton in self._wanted if len(skeleton) < _RUN]
        self._seen: dict[bytes, _Candidates] = {}

    def answers(self, skeletons: list[bytes]) -> dict[bytes, _Candidates]:
        """Candidates for each of ``skeletons``; of those that were asked for before too."""
        if len(self._seen) > _MAX_SKELETONS:
            self._seen.clear()
        for skeleton in set(skeletons).difference(self._seen):
            self._seen[skeleton] = self._look(_ANSI.sub(b"", skeleton) if b"\x1b" in skeleton else skeleton)
        return self._seen

    def _look(self, skeleton: bytes) -> _Candidates:
        possible = [literal for run in self._by_run.keys() & _runs(skeleton) for literal in self._by_run[run]]
        held = (literal for literal in (*possible, *self._short) if literal in skeleton)
        return tuple(pair for literal in held for pair in self._wanted[literal])


def _runs(text: bytes) -> set[int]:
    """All runs of four bytes of ``text``, as integers of this machine's byte order."""
    runs: set[int] = set()
    view = memoryview(text)
    for shift in range(_RUN):
        end = len(text) - (len(text) - shift) % _RUN
        if end > shift:
            runs.update(view[shift:end].cast("I"))
    return runs


def _rarest_run(literal: bytes) -> int:
    """Of the runs of ``literal`` the one that ordinary text holds least often, judged by its letters."""
    commonness = {letter: -rank for rank, letter in enumerate(b" etaoinsrhldcumfpgwybvkxjqz")}
    cuts = [literal[i : i + _RUN] for i in range(len(literal) - _RUN + 1)]
    return memoryview(min(cuts, key=lambda cut: sum(commonness.get(c, -40) for c in cut))).cast("I")[0]


@lru_cache(maxsize=4)
def _test_for(wanted: Wanted) -> _Test:
    return _Test(wanted)


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

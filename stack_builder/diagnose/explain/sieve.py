"""Reads a text of any size once and keeps the lines that can matter.

A log of a busy server is mostly lines that do not, and there are two ways not to look at them one by one. Where lines
differ in their numbers alone, what is left of a line without digits (its skeleton) is looked at only the first time
that it is seen. Where they do not, a piece of a megabyte is looked at as a whole: read as integers of four bytes, it
tells in bulk where a literal of the known error texts can stand, and only there is it compared. Only lines that hold a
literal are tried with its regular expressions. Memory is bounded by :data:`MAX_KEPT`.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, count
from typing import BinaryIO

CHUNK = 1 << 20  # bytes read at once
MAX_LINE = 16 << 10  # bytes; what a line says beyond is ignored
MAX_KEPT = 30_000  # lines kept from the start, and as many from the end
_BEFORE, _AFTER = 6, 60  # lines kept around the head of an exception
_SIGNS = ("Traceback (most recent call last)", "Error", "Exception")  # what _EXCEPTION matches holds one of them
_DIGITS = b"0123456789"
_SAMPLE = 32 << 10  # bytes by which a piece is judged
_MAX_SKELETONS = 50_000
_WORD = 4  # bytes of an integer of format "I"
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
        self._by_word: dict[bytes, list[tuple[int, bytes]]] = {}
        shared = Counter(word for text in self._regexes for word in set(_words(text)))
        for text in self._regexes:
            self._by_skeleton.setdefault(text.translate(None, _DIGITS), []).append(text)
            first = _rarest_pair(text, shared)
            for at in (first, first + 1):
                self._by_word.setdefault(text[at : at + _WORD], []).append((at, text))
        self._words = frozenset(int.from_bytes(word, sys.byteorder) for word in self._by_word)
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
        """For lines that are not: all literals are looked for in all of them together."""
        held: dict[int, set[bytes]] = {}
        number = line = 0
        end = -1  # of the line
        for start, literal in sorted(self._occurrences(piece)):
            if start > end:
                before = line
                line = piece.rfind(b"\n", max(end, 0), start) + 1
                number += piece.count(b"\n", before, line)
                end = piece.find(b"\n", start)
                end = len(piece) if end < 0 else end
            if start + len(literal) <= line + MAX_LINE:
                held.setdefault(number, set()).add(literal)
        return {offset: [r for text in texts for r in self._regexes[text]] for offset, texts in held.items()}

    def _occurrences(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Where in ``piece`` which literal stands, in no order.

        Its words from every even offset are looked up, which C does without a loop here: of two words of a literal that
        begin at neighbouring bytes, one begins at an even offset wherever the literal stands.
        """
        padded = memoryview(piece + bytes(2 * _WORD))
        for first in (0, _WORD // 2):
            words = padded[first : first + len(piece) // _WORD * _WORD + _WORD].cast("I")
            for offset in compress(count(first, _WORD), map(self._words.__contains__, words)):
                for at, literal in self._by_word[piece[offset : offset + _WORD]]:
                    if offset >= at and piece.startswith(literal, offset - at):
                        yield offset - at, literal


def _words(literal: bytes) -> list[bytes]:
    return [literal[at : at + _WORD] for at in range(len(literal) - _WORD + 1)]


def _rarest_pair(literal: bytes, shared: Mapping[bytes, int]) -> int:
    """Give the offset of the two neighbouring words that ordinary text holds least often.

    Judged by their letters, and by how many literals share them: such words are common, and cost more where they stand.
    """
    commonness = {letter: -rank for rank, letter in enumerate(b" etaoinsrhldcumfpgwybvkxjqz")}
    words = [sum(commonness.get(byte, -40) for byte in word) + 10 * shared[word] for word in _words(literal)]
    return min(range(len(words) - 1), key=lambda at: max(words[at : at + 2]))


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

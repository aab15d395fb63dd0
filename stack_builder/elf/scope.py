"""Symbol lookup through an ordered list of objects, as ld.so does it, with what was learnt kept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from stack_builder.elf.hashing import gnu_hash
from stack_builder.elf.layout import ElfError
from stack_builder.elf.object import ElfObject
from stack_builder.elf.symbols import Question

_hashed = lru_cache(maxsize=1 << 17)(gnu_hash)  # the objects of one stack ask for the same 20,000 names

Answer = ElfObject | None


class Scope(dict[Question, Answer]):
    """Objects in the order in which they are asked; the first that defines a name wins, weakly or not.

    A dictionary that answers questions: each is looked up once, and None is an answer.

    Args:
        members: the objects.
        damaged: where the names of members whose tables turn out to be damaged are put, with the reason; they count
            as defining nothing.
    """

    def __init__(self, members: Iterable[ElfObject], damaged: dict[str, str]) -> None:
        super().__init__()
        self._damaged = damaged
        self._members: list[tuple[memoryview, int, int, ElfObject]] = []
        for member in members:
            try:
                self._members.append((*member.symbols.bloom_filter(), member))
            except ElfError as error:
                damaged[member.where] = error.what

    def __missing__(self, question: Question) -> Answer:
        hashed = _hashed(question[0])
        first, word = hashed & 63, hashed >> 6
        for bloom, mask, shift, member in self._members:  # ten names are turned away for one that is looked up
            bits = bloom[word & mask]
            if (bits >> first) & (bits >> (hashed >> shift & 63)) & 1 and self._defines(member, question, hashed):
                self[question] = member
                return member
        self[question] = None
        return None

    def _defines(self, member: ElfObject, question: Question, hashed: int) -> bool:
        if member.where in self._damaged:
            return False
        try:
            return member.symbols.define(question, hashed)
        except ElfError as error:
            self._damaged[member.where] = error.what
            return False

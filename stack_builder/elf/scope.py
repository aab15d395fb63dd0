"""Symbol lookup through an ordered list of objects, as ld.so does it, with what was learnt kept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from stack_builder.elf.hashing import gnu_hash
from stack_builder.elf.layout import ElfError
from stack_builder.elf.object import ElfObject
from stack_builder.elf.symbols import Reference

_hashed = lru_cache(maxsize=1 << 17)(gnu_hash)  # the objects of one stack ask for the same 20,000 names

Answer = ElfObject | None


class Scope:
    """Objects in the order in which they are asked; the first that defines a name wins, weakly or not.

    Args:
        members: the objects.
        damaged: where the names of members whose tables turn out to be damaged are put, with the reason; they count
            as defining nothing.
    """

    def __init__(self, members: Iterable[ElfObject], damaged: dict[str, str]) -> None:
        self._members = tuple(members)
        self._damaged = damaged
        self._known: dict[tuple[bytes, str | None, bool], Answer] = {}

    def find(self, reference: Reference) -> Answer:
        """The first member that defines what a reference asks for, or None."""
        key = (reference.name, reference.version, reference.hidden)
        known = self._known
        if key not in known:
            known[key] = self._first(reference)
        return known[key]

    def _first(self, reference: Reference) -> Answer:
        hashed = _hashed(reference.name)
        return next((member for member in self._members if defines(member, reference, hashed, self._damaged)), None)


def find_in(member: ElfObject, reference: Reference, damaged: dict[str, str]) -> Answer:
    """The object itself if it defines what a reference asks for."""
    return member if defines(member, reference, _hashed(reference.name), damaged) else None


def defines(member: ElfObject, reference: Reference, hashed: int, damaged: dict[str, str]) -> bool:
    """Whether an object defines what a reference asks for; one with damaged tables does not."""
    if member.where in damaged:
        return False
    try:
        return member.symbols.define(reference, hashed)
    except ElfError as error:
        damaged[member.where] = error.what
        return False

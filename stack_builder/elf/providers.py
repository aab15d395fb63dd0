"""Who must bring a library or symbol: the host's driver, the interpreter, the base system, or else a wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from stack_builder import resources


class Provider(StrEnum):
    """Where a library comes from that is not there."""

    DRIVER = "host driver"
    INTERPRETER = "interpreter"
    BASE = "base"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class _Table:
    driver: Mapping[str, re.Pattern[str]]
    interpreter: re.Pattern[str]
    python_symbols: re.Pattern[str]
    base: frozenset[str]


@cache
def _table() -> _Table:
    data = resources.table("providers.toml")
    return _Table(
        {soname: re.compile(pattern) for soname, pattern in data["driver"].items()},
        re.compile(data["interpreter"]["sonames"]),
        re.compile(data["interpreter"]["symbols"]),
        frozenset(data["base"]["sonames"]),
    )


def provider_of_library(soname: str) -> Provider:
    """Who brings a library of this name; a wheel, where nothing else is known."""
    table = _table()
    if soname in table.driver:
        return Provider.DRIVER
    if table.interpreter.fullmatch(soname):
        return Provider.INTERPRETER
    return Provider.BASE if soname in table.base else Provider.WHEEL


def driver_symbol(name: str, absent: Iterable[str]) -> bool:
    """Whether one of the driver's libraries among ``absent`` (sonames) has symbols of this kind."""
    driver = _table().driver
    return any(soname in driver and driver[soname].fullmatch(name) for soname in absent)


def python_symbol(name: str) -> bool:
    """Whether the interpreter defines symbols of this kind."""
    return _table().python_symbols.fullmatch(name) is not None

"""Mangled names, readable."""

from __future__ import annotations

import cxxfilt

_MAX_NAME = 4096  # characters; a longer name is not demangled


def demangled(symbol: str) -> str:
    """Give the C++ name behind ``symbol``, or ``symbol`` itself where it is none."""
    if not symbol.startswith("_Z") or len(symbol) > _MAX_NAME:
        return symbol
    try:
        return str(cxxfilt.demangle(symbol))
    except cxxfilt.Error:
        return symbol

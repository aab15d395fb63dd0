"""C++ names for people, by the demangler of libstdc++ itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

MAX_DEMANGLED = 16 << 10
"""Characters of a mangled name beyond which it is left alone: substitutions can make hostile names explode."""


def demangle(name: str) -> str:
    """``c10::Error::what() const`` for ``_ZNK3c105Error4whatEv``; the name itself where it is not mangled.

    Without a libstdc++ to ask, every name stays as it is.
    """
    if not name.startswith("_Z") or len(name) > MAX_DEMANGLED:
        return name
    ask = _demangler()
    return name if ask is None else ask(name)


@cache
def _demangler() -> Callable[[str], str] | None:
    try:
        import cxxfilt  # loads libstdc++, which a slim image may lack
    except (ImportError, OSError):
        return None
    mangled_again: type[Exception] = cxxfilt.InvalidName
    functions: Callable[[str], str] = cxxfilt.demangle

    def ask(name: str) -> str:
        try:
            return functions(name)
        except mangled_again:
            return name

    return ask

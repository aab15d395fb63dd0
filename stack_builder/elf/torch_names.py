"""Which mangled names are torch's own: of its C++ interface, of its Python bindings, of its stable C interface."""

from __future__ import annotations

import re

MAX_NAME = 300
MAX_NATIVE_NAME = 100
"""Length from which a name is left out: only instantiated templates have such names, and an extension that uses one
instantiates it itself. In ``at::native`` these are kernels, by the ten thousand."""

_OWN = re.compile(r"_Z(T[ISV]|GR)?N?[KVOR]*(2at|3c10|4c10d|5torch)|(_Z\d+)?THP[A-Z]|(aoti_|torch_|c10_)")
_NATIVE = re.compile(r"_ZN2at(6native|4cuda3cub)")
_STABLE = re.compile(r"(aoti_torch|torch)_\w+")


def is_torch_name(symbol: str) -> bool:
    """Whether a symbol is torch's own, and such as an extension would import; these are recorded by release.

    The namespace that the name itself is in decides: a function of the extension that takes an ``at::Tensor`` is not
    torch's.
    """
    if not _OWN.match(symbol) or "EUl" in symbol:  # EUl: a lambda, which nobody outside can name
        return False
    return len(symbol) <= (MAX_NATIVE_NAME if _NATIVE.match(symbol) else MAX_NAME)


def is_stable_name(symbol: str) -> bool:
    """Whether a symbol of torch is a C function of its stable ABI (``torch/csrc/stable``, ``aoti_torch/c/shim.h``)."""
    return _STABLE.fullmatch(symbol) is not None

"""TOML of unknown origin. The standard library's reader is quadratic in the parts of a dotted key: 1 MB takes hours."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_PARTS = 64
"""Of a dotted key; a stack file has three."""

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}")


def loads(text: str) -> dict[str, Any]:
    """Read a document.

    Raises:
        ValueError: not TOML, nested too deeply, or a key of too many parts.
    """
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MAX_PARTS} parts (at line {line})")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error

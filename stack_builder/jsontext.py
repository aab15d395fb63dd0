"""JSON of unknown origin, read so that whatever was read can be reckoned with; and JSON written for whoever asks.

The standard library takes NaN, infinities and numbers of any length, and answers a thousand brackets with
``RecursionError``. Each of these went wrong far from where it was read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, is_dataclass
from itertools import islice

# inside strings alone: the signs of JSON itself are ASCII
_OBEYED = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PIECES = 10_000  # of a document, joined at a time
_MAX_DIGITS = 20  # of an integer: 64 bits and a sign


def loads(text: str | bytes, *, lenient: bool = False) -> object:
    """Read a document.

    Args:
        text: the document.
        lenient: give None for NaN and infinities, which Python's own writer puts into files of other tools.

    Raises:
        ValueError: not JSON, nested too deeply, with numbers that JSON does not have (RFC 8259, 6), or with half of a
            surrogate pair (8.2), which no file can hold.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")  # as the standard library does
    try:
        found: object = (_LENIENT if lenient else _STRICT).decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("half of a surrogate pair in a string") from error
    return found


def dumps(value: object, *, indent: int | None = 2, compact: bool = False, sort_keys: bool = False) -> str:
    """Write a document for programs and terminals: text as it is, escapes where one would be obeyed.

    Args:
        value: what JSON holds; dataclasses are objects.
        indent: spaces a level; None for one line.
        compact: no space behind colons and commas.
        sort_keys: keys in order, rather than as they come.

    Returns:
        the document and a line feed.

    Raises:
        ValueError: NaN or an infinity.
    """
    separators = (",", ":") if compact else None
    encoder = json.JSONEncoder(
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        ensure_ascii=False,
        allow_nan=False,
        default=_fields,
    )
    # The pieces of a large document together take twenty times its size, so they are joined as they come. One line is
    # written by the standard library's own C code, at once.
    pieces = iter((encoder.encode(value),)) if indent is None else encoder.iterencode(value)
    joined = []
    while some := "".join(islice(pieces, _PIECES)):
        joined.append(_harmless(some))
    joined.append("\n")
    return "".join(joined)


def _fields(value: object) -> dict[str, object]:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"{type(value).__name__} is nothing that JSON holds")


def _harmless(text: str) -> str:
    """Escape what a terminal may obey: C1 controls, text direction."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _nothing(text: str) -> object:
    return None


def _constant(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON")


def _float(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"the number {text[:20]} is too large")
    return found


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


# Made once: a bench reads a document for every event of a stream, and a decoder costs as much as reading one.
_STRICT = json.JSONDecoder(parse_constant=_constant, parse_float=_float, parse_int=_int)
_LENIENT = json.JSONDecoder(parse_constant=_nothing, parse_float=_float, parse_int=_int)

"""Damage with a purpose: what hostile bytes, texts and JSON documents look like.

All of it is a function of a :class:`random.Random`, so that a seed names an input.
"""

from __future__ import annotations

import copy
import json
import math
import random
import struct
from collections.abc import Callable, Sequence

Chance = random.Random

WORDS = (0, 1, 7, 8, 24, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

TEXTS = (
    "",
    " ",
    "\0",
    "\x1b]0;title\x07\x1b[2J",
    "\u202egpj.exe",
    "\ufeff",
    "\ud800",
    "İ",  # lower() gives two characters
    "²",  # isdigit(), but no int()
    "٣",  # isdecimal(), and int() takes it
    "9" * 5000,  # int() refuses more than 4300 digits with a ValueError of its own
    "-1",
    "1e999",
    "NaN",
    "0x10",
    "1" + ".1" * 300,
    "a" * 5000,
    "../../../../tmp/x",
    "/etc/passwd",
    "C:\\x",
    "file:///etc/passwd",
    "http://[::1",  # urlsplit raises
    "http://a:99999999/",
    "//",
    "a@b:c",
    "{0.__class__}",
    "%s%n",
    "(" * 200,
    "[" * 2000,
    "{" * 2000,
    "sha256:" + "0" * 64,
    "0" * 64,
    "\r\n",
    "'\"`$(x)",
    "true",
    "null",
)

VALUES: tuple[Callable[[], object], ...] = (
    lambda: None,
    lambda: True,
    lambda: False,
    lambda: 0,
    lambda: -1,
    lambda: 1,
    lambda: 1 << 31,
    lambda: (1 << 63) - 1,
    lambda: 1 << 64,
    lambda: 10**4000,
    lambda: 0.5,
    lambda: math.nan,
    lambda: math.inf,
    lambda: -math.inf,
    lambda: 1e308,
    list,
    dict,
    lambda: [[]],
    lambda: [None] * 300,
    lambda: {"": ""},
    lambda: nested(100),  # several may stand in one another, and copying recurses twice a level
)


def nested(depth: int) -> object:
    """Lists in lists."""
    found: object = []
    for _ in range(depth):
        found = [found]
    return found


def mutate_bytes(data: bytes, chance: Chance, tokens: Sequence[bytes] = ()) -> bytes:
    """Bits flipped, words overwritten, blocks moved, repeated or cut, tokens put in."""
    out = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(out))
        match chance.randrange(7):
            case 0:
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                size = chance.choice((1, 2, 4, 8))
                word = struct.pack(chance.choice("<>") + "Q", chance.choice(WORDS))
                out[at : at + size] = word[:size]
            case 2:
                source = chance.randrange(len(out))
                block = out[source : source + chance.randint(1, 200)]
                out[at:at] = block * chance.choice((1, 1, 2, 100))
            case 3:
                del out[at : at + chance.randint(1, 200)]
            case 4 if chance.random() < 0.3:
                del out[at:]
            case 5:
                out[at] = chance.choice(b"\0\n\r\t \"'\\/<>{}[](),:;=#%&\x1b\xff\x80.-0")
            case _ if tokens:
                out[at:at] = chance.choice(tokens)
            case _:
                out[at] = chance.randrange(256)
        if not out:
            return b""
    return bytes(out)


def mutate_text(text: str, chance: Chance, tokens: Sequence[str] = ()) -> bytes:
    """Lines and words exchanged, repeated or replaced by hostile ones."""
    lines = text.split("\n")
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                lines[at:at] = [chance.choice(lines)] * chance.choice((1, 1, 50))
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                other = chance.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                words = lines[at].split(" ")
                words[chance.randrange(len(words))] = chance.choice((*TEXTS, *tokens))
                lines[at] = " ".join(words)
    encoded = "\n".join(lines).encode("utf-8", "surrogatepass")
    return (
        mutate_bytes(encoded, chance, [t.encode("utf-8", "surrogatepass") for t in tokens])
        if chance.random() < 0.4
        else encoded
    )


def mutate_tree(document: object, chance: Chance) -> object:
    """A copy in which some values became others: of another type, of another place, missing, twice."""
    root = [copy.deepcopy(document)]
    for step in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(root))[1:] or [(root, 0)]
        holder, key = chance.choice(places)
        match chance.randrange(8):
            case 0 | 1 | 2:
                holder[key] = chance.choice(VALUES)()
            case 3:
                holder[key] = chance.choice(TEXTS)
            case 4:
                other, name = chance.choice(places)
                holder[key] = copy.deepcopy(other[name])
            case 5:
                holder[key] = [holder[key]] * (chance.choice((1, 2, 300)) if step == 0 else 2)
            case 6 if isinstance(holder, dict):
                holder[chance.choice((*TEXTS, "extra", *holder))] = holder.pop(key)
            case _ if holder is not root:
                del holder[key]
    return root[0]


def mutate_json(document: object, chance: Chance) -> bytes:
    """A document with wrong values, sometimes with wrong bytes as well."""
    text = json.dumps(mutate_tree(document, chance)).encode()
    if chance.random() < 0.1:
        text = text.replace(b"{", b"[" * 30_000 if chance.random() < 0.5 else b'{"":' * 5000, 1)
    return mutate_bytes(text, chance) if chance.random() < 0.15 else text


def _places(node: object) -> list[tuple[dict | list, str | int]]:  # type: ignore[type-arg]
    found: list[tuple[dict | list, str | int]] = []  # type: ignore[type-arg]
    todo = [node]
    while todo and len(found) < 4000:
        here = todo.pop()
        if isinstance(here, dict):
            found += [(here, key) for key in here]
            todo += here.values()
        elif isinstance(here, list):
            found += [(here, index) for index in range(len(here))]
            todo += here
    return found

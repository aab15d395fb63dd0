"""Text of unknown origin on its way to a terminal: file names, logs, metadata, what servers answer."""

from __future__ import annotations


def printable(text: str) -> str:
    """Keep a string on its line and harmless: white space becomes a space, other control characters U+FFFD.

    So no escape sequence and no bidirectional override is obeyed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)

"""A GPU by its compute capability, as options, stack files and reports name it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stack_builder.errors import UsageError

_WRITTEN = re.compile(r"(?:sm_?)?(\d{1,2})(\d)[af]?|(\d{1,2})\.(\d)")


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """A compute capability; ``str`` gives the one form that everything but people uses, ``sm_120``."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Gpu:
        """Read ``sm_120``, ``sm120``, ``120`` or ``12.0``.

        Raises:
            UsageError: of another form.
        """
        match = _WRITTEN.fullmatch(text.strip().lower())
        if match is None:
            raise UsageError(f"'{text}' names no GPU architecture", where="--gpu", fix="write it like sm_120")
        major, minor = (match[1], match[2]) if match[1] else (match[3], match[4])
        return cls(int(major), int(minor))

    @property
    def capability(self) -> int:
        """``120`` for 12.0."""
        return self.major * 10 + self.minor

    def __str__(self) -> str:
        return f"sm_{self.capability}"

"""All targets by name."""

from __future__ import annotations

from tests.fuzz import archives
from tests.fuzz.runner import Target

TARGETS: dict[str, Target] = {**archives.TARGETS}

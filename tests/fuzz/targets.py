"""All targets by name."""

from __future__ import annotations

from tests.fuzz import archives, binaries, documents, servers
from tests.fuzz.runner import Target

TARGETS: dict[str, Target] = {**archives.TARGETS, **binaries.TARGETS, **documents.TARGETS, **servers.TARGETS}

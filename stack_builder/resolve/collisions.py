"""Paths that several wheels of one lock ship with different bytes.

Installers write wheels in the order they come, or in parallel: whichever is last wins, and two runs of one command
can leave two different trees. The scan spans the whole lock, since the wheels concerned need not be neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from stack_builder.stack.lock import Claim, Collision
from stack_builder.stack.spec import StackSpec
from stack_builder.wheels.facts import WheelFacts
from stack_builder.wheels.layout import venv_path


def collisions(wheels: Iterable[WheelFacts], python: str) -> tuple[Collision, ...]:
    """Give the paths with different bytes, sorted.

    Args:
        wheels: facts of every wheel that will be installed.
        python: such as ``3.11``; it decides where files land.
    """
    claims: dict[str, dict[str, str]] = defaultdict(dict)
    for wheel in wheels:
        for file in wheel.files:
            claims[venv_path(file.scheme, file.path, wheel.name, python)][wheel.name] = file.sha256
    return tuple(
        Collision(path, tuple(Claim(name, digest) for name, digest in sorted(owners.items())))
        for path, owners in sorted(claims.items())
        if len(set(owners.values())) > 1
    )


def undecided(found: Iterable[Collision], spec: StackSpec, gpu: str) -> tuple[Collision, ...]:
    """Give the collisions for which the stack file names no winner on ``gpu``."""
    return tuple(collision for collision in found if spec.winner_for(collision.owners, gpu) is None)

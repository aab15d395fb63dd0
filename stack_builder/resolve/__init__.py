"""From a stack file to a lock: resolvers, what is read of each wheel, collisions, what indexes serve.

``RESOLVERS`` is the one place that knows which resolvers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stack_builder.progress import Progress
from stack_builder.resolve.model import Resolver
from stack_builder.resolve.piptools import PipTools
from stack_builder.resolve.uv import Uv
from stack_builder.wheels.index import Index

Indexes = Callable[[], Mapping[str, Index]]

# Name on the command line -> maker. The first is the default, the others can cross-check it.
RESOLVERS: dict[str, Callable[[Indexes, Progress, bool], Resolver]] = {
    "uv": lambda indexes, progress, offline: Uv(progress, offline),
    "pip-tools": lambda indexes, progress, offline: PipTools(indexes, progress, offline),
}

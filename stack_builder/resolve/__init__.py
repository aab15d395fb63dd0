"""From a stack file to a lock: resolvers, what is read of each wheel, collisions, what indexes serve.

``RESOLVERS`` is the one place that knows which resolvers there are.
"""

from __future__ import annotations

from collections.abc import Callable

from stack_builder.progress import Progress
from stack_builder.resolve.indexes import Indexes
from stack_builder.resolve.model import Resolver


def _uv(indexes: Indexes, progress: Progress, offline: bool) -> Resolver:
    from stack_builder.resolve.uv import Uv

    return Uv(progress, offline)


def _pip_tools(indexes: Indexes, progress: Progress, offline: bool) -> Resolver:
    from stack_builder.resolve.piptools import PipTools

    return PipTools(indexes, progress, offline)


# Name on the command line -> maker. The first is the default, the others can cross-check it. Each is imported when
# it is made: pip-tools needs an HTTP client, uv does not.
RESOLVERS: dict[str, Callable[[Indexes, Progress, bool], Resolver]] = {"uv": _uv, "pip-tools": _pip_tools}

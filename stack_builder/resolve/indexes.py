"""The indexes of a stack, opened when the first one is asked: most locks are made from caches and uv's answer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from stack_builder.stack.spec import StackSpec

if TYPE_CHECKING:  # an HTTP client takes as long to load as all the rest
    from stack_builder.wheels.index import Index

Indexes = Callable[[], Mapping[str, "Index"]]


@contextmanager
def indexes_when_asked(spec: StackSpec) -> Iterator[Indexes]:
    """Give a function that gives the indexes by name; connections are closed at the end of the context.

    Threads may share the function.
    """
    lock = Lock()
    opened: dict[str, Index] = {}
    with ExitStack() as stack:

        def indexes() -> Mapping[str, Index]:
            with lock:
                if not opened:
                    from stack_builder.wheels.http import Http
                    from stack_builder.wheels.index import indexes_of

                    opened.update(indexes_of(spec, stack.enter_context(Http())))
            return opened

        yield indexes

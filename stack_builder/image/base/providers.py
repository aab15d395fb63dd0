"""Where bases come from, by the word before the colon of ``--base``."""

from __future__ import annotations

from stack_builder.errors import UsageError
from stack_builder.image.base.debian import DebianProvider
from stack_builder.image.base.model import BaseProvider
from stack_builder.stack.spec import Base as BaseTable

PROVIDERS: dict[str, BaseProvider] = {
    "recipe": DebianProvider(),
}


def choose(given: str | None, table: BaseTable) -> tuple[str, BaseProvider, str]:
    """Find the provider.

    Args:
        given: ``KIND:NAME`` from ``--base``, or None.
        table: ``[base]`` of the stack file, which decides otherwise.

    Returns:
        the kind, its provider, and the name to ask it for.

    Raises:
        UsageError: there is no such kind.
    """
    source = given or (f"recipe:{table.recipe}" if table.recipe else f"registry:{table.image}")
    kind, colon, name = source.partition(":")
    if not colon or kind not in PROVIDERS or not name:
        raise UsageError(f"no base '{source}'", fix=f"give --base {' or '.join(f'{each}:…' for each in PROVIDERS)}")
    return kind, PROVIDERS[kind], name

"""Where bases come from, by the word before the colon of ``--base``."""

from __future__ import annotations

from stack_builder.errors import UsageError
from stack_builder.image.base.debian import DebianProvider
from stack_builder.image.base.dockerfile import DockerfileProvider
from stack_builder.image.base.images import EngineProvider, LayoutProvider, RegistryProvider
from stack_builder.image.base.model import BaseProvider
from stack_builder.stack.spec import Base as BaseTable

PROVIDERS: dict[str, BaseProvider] = {
    "recipe": DebianProvider(),
    "oci": LayoutProvider(),
    "registry": RegistryProvider(),
    "docker": EngineProvider(),
    "dockerfile": DockerfileProvider(),
}


def source(table: BaseTable) -> str:
    """Write ``[base]`` of a stack file as ``--base`` takes it."""
    return f"recipe:{table.recipe}" if table.recipe else f"registry:{table.image}"


def by_engine(given: str) -> str:
    """Turn the base of a stack into the one that ``--engine docker`` builds on it.

    Raises:
        UsageError: it is no image that an engine could start from.
    """
    kind, _, name = given.partition(":")
    if kind not in ("registry", "docker"):
        raise UsageError(
            f"--engine docker starts from an image, not from {given}",
            fix="give --base registry:HOST/NAME@sha256:… or --base docker:NAME",
        )
    return f"dockerfile:{name}"


def choose(given: str) -> tuple[BaseProvider, str]:
    """Find the provider of ``KIND:NAME``, and the name to ask it for.

    Raises:
        UsageError: there is no such kind.
    """
    kind, colon, name = given.partition(":")
    if not colon or kind not in PROVIDERS or not name:
        raise UsageError(f"no base '{given}'", fix=f"give --base {' or '.join(f'{each}:…' for each in PROVIDERS)}")
    return PROVIDERS[kind], name

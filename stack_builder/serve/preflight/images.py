"""What the Docker engine says of an image, without starting or unpacking it."""

from __future__ import annotations

from collections.abc import Mapping

from stack_builder.errors import no_engine


def labels(reference: str, stack: str) -> tuple[Mapping[str, str] | None, str]:
    """The labels of an image, or None and why they cannot be had.

    The launch itself reports a missing image or engine as the failure that it is; a check only says what it could not
    tell, and how the image comes there.

    Args:
        reference: the image.
        stack: that it is built from, as a user writes it in a command.
    """
    import docker
    import docker.errors

    try:
        return dict(docker.from_env().images.get(reference).labels), ""
    except docker.errors.ImageNotFound:
        return None, f"the Docker engine has no image {reference}: run stackb build {stack} --output docker:{reference}"
    except docker.errors.DockerException as error:
        return None, str(no_engine(error, fix="start Docker"))

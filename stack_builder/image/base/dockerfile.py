"""A base that a Docker engine builds from ``docker/Dockerfile``: for images of a registry that lack packages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from stack_builder import resources
from stack_builder.errors import MachineError, UsageError, engine_says
from stack_builder.image.base.images import EngineProvider
from stack_builder.image.base.model import Base, BaseRequest, Foreseen

if TYPE_CHECKING:
    import docker


class DockerfileProvider:
    """``dockerfile:REF``: ``docker/Dockerfile`` on top of an image that the engine has or can pull."""

    def provide(self, request: BaseRequest) -> Base:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        if request.locked:
            raise UsageError("a base made by commands is not locked", where=request.name, fix="omit --locked")
        request.progress.note(f"base: docker/Dockerfile on {request.name}; not the same bit for bit when made again")
        import docker

        from stack_builder.image.daemon import connect

        client = connect()
        identity = _build(client, request)
        try:
            base = EngineProvider().provide(replace(request, name=identity))
        finally:
            with suppress(docker.errors.APIError):  # somebody uses it already
                client.images.remove(identity)
        return replace(base, record=replace(base.record, source=f"dockerfile:{request.name}"))

    def foresee(self, request: BaseRequest) -> Foreseen:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        return Foreseen(f"run docker/Dockerfile on {request.name}")


def _build(client: docker.DockerClient, request: BaseRequest) -> str:
    """Run the Dockerfile; returns the image's ID.

    Raises:
        MachineError: no such image, or a command failed; with its last words.
    """
    import docker

    said: list[str] = []
    identity = None
    with request.progress.task(f"docker/Dockerfile on {request.name}"):
        try:
            for event in client.api.build(
                path=str(resources.docker()),
                dockerfile="Dockerfile",
                buildargs={"BASE": request.name, "PYTHON": request.python},
                rm=True,
                forcerm=True,
                decode=True,
            ):
                if "error" in event:
                    line = (said[-1:] or [str(event["error"])])[0]
                    raise MachineError(f"a command failed: {line[:300]}", where="docker/Dockerfile")
                if text := str(event.get("stream", "")).strip():
                    said.append(text)
                identity = event.get("aux", {}).get("ID", identity)
        except docker.errors.DockerException as error:
            raise MachineError(
                f"the Docker engine does not build: {engine_says(error)}", where="docker/Dockerfile"
            ) from error
    if identity is None:
        raise MachineError("the Docker engine names no image", where="docker/Dockerfile")
    return str(identity)

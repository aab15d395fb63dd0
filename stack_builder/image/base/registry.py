"""A base in a registry: its blobs by digest, with the connections and the care that ``stackb pull`` has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from stack_builder.errors import MachineError
from stack_builder.registry.manifest import ACCEPT
from stack_builder.registry.reference import parse
from stack_builder.registry.session import Session
from stack_builder.wheels.http import TransientError, describe

_CHUNK = 1 << 20
_OK = 200


class RegistrySource:
    """Blobs of one repository of a registry."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name

    @classmethod
    @contextmanager
    def connect(cls, name: str) -> Iterator[RegistrySource]:
        """Open connections to the registry of ``HOST/NAME``; plain HTTP on the loopback interface, as engines do.

        Raises:
            UsageError: ``name`` has not this form.
        """
        reference = parse(name)
        with Session(reference) as session:
            yield cls(session, reference.name)

    def blob(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._get(f"{self._name}/blobs/{digest}")

    def manifest(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._get(f"{self._name}/manifests/{digest}")

    def _get(self, path: str) -> Iterator[bytes]:
        url = self._session.url(path)
        try:
            with self._session.stream("GET", url, (_OK,), headers={"Accept": ACCEPT}) as answer:
                yield from answer.iter_raw(_CHUNK)
        except (TransientError, httpx.HTTPError) as error:
            what = f"the registry does not answer ({describe(error)})"
            raise MachineError(what, where=self._session.where, fix="run it again") from error

"""Reading an image from a registry: the "pull" part of the OCI distribution specification 1.1, without an account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from stack_builder import __version__
from stack_builder.errors import MachineError, UsageError
from stack_builder.registry.manifest import ACCEPT

_NAME = re.compile(r"(?P<host>[a-z0-9.-]+(:[0-9]+)?)/(?P<path>[a-z0-9]+([._/-]+[a-z0-9]+)*)")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_CHUNK = 1 << 20
_TIMEOUT = httpx.Timeout(60.0)


class RegistrySource:
    """Blobs of one repository of a registry."""

    def __init__(self, client: httpx.Client, root: str, where: str) -> None:
        self._client, self._root, self._where = client, root, where

    @classmethod
    @contextmanager
    def connect(cls, name: str) -> Iterator[RegistrySource]:
        """Open connections to the registry of ``HOST/NAME``; plain HTTP on the loopback interface, as engines do.

        Raises:
            UsageError: ``name`` has not this form.
        """
        match = _NAME.fullmatch(name)
        if match is None or not re.search(r"[.:]|^localhost$", match["host"]):
            raise UsageError("names no registry", where=name, fix="write registry:HOST/NAME@sha256:…")
        local = match["host"].partition(":")[0] in ("localhost", "127.0.0.1")
        root = f"{'http' if local else 'https'}://{match['host']}/v2/{match['path']}"
        headers = {"User-Agent": f"stackb/{__version__}"}
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT, headers=headers) as client:
            yield cls(client, root, name)

    def blob(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._get(f"{self._root}/blobs/{digest}")

    def manifest(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._get(f"{self._root}/manifests/{digest}")

    def _get(self, url: str) -> Iterator[bytes]:
        try:
            for attempt in ("as it is", "with a token"):
                with self._client.stream("GET", url, headers={"Accept": ACCEPT}) as answer:
                    if answer.status_code == httpx.codes.UNAUTHORIZED and attempt == "as it is":
                        self._authorise(answer.headers.get("WWW-Authenticate", ""))
                        continue
                    if answer.status_code != httpx.codes.OK:
                        raise MachineError(
                            f"the registry answers {answer.status_code}",
                            where=self._where,
                            fix="check the name; for a private image use docker pull, then --base docker:NAME",
                        )
                    yield from answer.iter_bytes(_CHUNK)
                    return
        except httpx.HTTPError as error:
            line = str(error) or type(error).__name__
            raise MachineError(f"the registry does not answer ({line})", where=self._where) from error

    def _authorise(self, challenge: str) -> None:
        """Get the token that registries give to anybody (distribution-spec, "Token Authentication")."""
        fields = dict(_CHALLENGE.findall(challenge))
        realm = fields.pop("realm", "")
        if not challenge.lower().startswith("bearer") or not realm.startswith("https://"):
            raise MachineError("the registry wants an account", where=self._where, fix="use --base docker:NAME")
        answer = self._client.get(realm, params=fields)
        body = answer.json() if answer.status_code == httpx.codes.OK else {}
        token = body.get("token") or body.get("access_token")
        if not isinstance(token, str):
            raise MachineError("the registry gives no token", where=self._where, fix="use --base docker:NAME")
        self._client.headers["Authorization"] = f"Bearer {token}"

"""Credentials that ``docker login`` has left: in ``config.json`` itself, or with a helper that it names."""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack_builder import jsontext
from stack_builder.errors import MachineError, UsageError

_MAX_CONFIG = 4 << 20  # bytes
_HELPER = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PATIENCE = 30.0  # seconds; a helper may unlock a key ring


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a secret, which is in no ``repr`` and so in no message."""

    user: str
    secret: str = field(repr=False)


def find(host: str) -> Credentials | None:
    """Look up a registry in ``$DOCKER_CONFIG/config.json``, by default ``~/.docker/config.json``.

    Raises:
        UsageError: the file is malformed.
        MachineError: the helper that it names fails.
    """
    path = Path(os.environ.get("DOCKER_CONFIG") or Path("~/.docker").expanduser()) / "config.json"
    config = _load(path)
    helper = _text(_table(config, "credHelpers").get(host)) or _text(config.get("credsStore"))
    if helper:
        return _ask(helper, host)
    auths = _table(config, "auths")
    entry = next((auths[key] for key in (host, f"https://{host}", f"http://{host}") if key in auths), None)
    if not isinstance(entry, dict):
        return None
    if entry.get("identitytoken"):
        raise MachineError(
            "is logged in to with an identity token, which is not supported",
            where=host,
            fix="log in with a user name and an access token",
        )
    return _decoded(_text(entry.get("auth")), path)


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise UsageError(f"larger than {_MAX_CONFIG} bytes", where=path)
        body = jsontext.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError("is not JSON", where=path, fix="run docker login again") from error
    return body if isinstance(body, dict) else {}


def _ask(helper: str, host: str) -> Credentials | None:
    """Run a credential helper (docker/docker-credential-helpers, "get")."""
    if not _HELPER.fullmatch(helper):
        raise UsageError("names a credential helper that no command is called like", where="config.json")
    command = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [command, "get"], input=host, capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
        if done.returncode != 0:  # helpers exit so for a host that they do not know
            return None
        body: Any = jsontext.loads(done.stdout)
        return Credentials(str(body["Username"]), str(body["Secret"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise MachineError(
            "the credential helper of Docker's config.json does not work", where=command, fix="run docker login again"
        ) from error


def _decoded(auth: str | None, path: Path) -> Credentials | None:
    if not auth:
        return None
    try:
        user, colon, secret = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise UsageError("holds an entry that is no user and password", where=path, fix="run docker login again")
    return Credentials(user, secret.rstrip("\0"))


def _table(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

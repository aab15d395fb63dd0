"""Requests to one registry: authorised as it asks, redirected only where that is safe, repeated where that helps."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from stack_builder import __version__, jsontext
from stack_builder.errors import IntegrityError, MachineError
from stack_builder.registry.credentials import Credentials, find
from stack_builder.registry.reference import Reference
from stack_builder.wheels.http import (
    MAX_PAUSE,
    MAX_REDIRECTS,
    TRANSIENT_STATUS,
    TransientError,
    describe,
    redact,
    trust,
)
from stack_builder.wheels.pace import pace

T = TypeVar("T")
Body = bytes | Iterator[bytes] | None

MAX_ANSWER = 1 << 20  # bytes of an answer that is neither manifest nor blob
STALL = 60.0  # seconds without a byte
ATTEMPTS = 5

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_UNAUTHORISED, _FORBIDDEN = 401, 403


class Session:
    """Connections to a registry, shared by threads.

    Plain HTTP is spoken on the loopback interface, and elsewhere only if the user insists. Credentials and tokens go to
    the registry's own scheme, host and port, and to the token service that it names, which must be as safe.

    Args:
        reference: names the registry.
        insecure: the user allows plain HTTP.
    """

    def __init__(self, reference: Reference, *, insecure: bool = False) -> None:
        self.where = f"{reference.host}/{reference.name}"
        plain = reference.loopback or insecure
        self.root = httpx.URL(f"{'http' if plain else 'https'}://{reference.host}/v2/")
        agent = {"User-Agent": f"stackb/{__version__}", "Accept-Encoding": "identity"}
        timeout = httpx.Timeout(STALL, connect=15.0, pool=None)
        self._client = pace(httpx.Client(timeout=timeout, headers=agent, verify=trust()))
        self._host = reference.host
        self._authorization: str | None = None
        self._credentials: Credentials | None = None
        self._asked = False
        self._lock = threading.Lock()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def url(self, path: str) -> httpx.URL:
        """The address of a path below ``/v2/``."""
        return self.root.join(path)

    def retry(self, action: Callable[[], T], position: Callable[[], int] = lambda: 0) -> T:
        """Call ``action`` until it does not fail for a passing reason.

        Args:
            action: may be called again.
            position: how many bytes have arrived; while they grow, nothing is given up.

        Raises:
            MachineError: it failed too often in a row.
        """
        failures, reached = 0, position()
        while True:
            try:
                return action()
            except (TransientError, httpx.TransportError) as error:
                failures, reached = (1, position()) if position() > reached else (failures + 1, reached)
                if failures >= ATTEMPTS:
                    what = f"no usable answer after {failures} attempts ({describe(error)})"
                    fix = "check the address and the network, then run it again: it goes on where it ended"
                    raise MachineError(what, where=self.where, fix=fix) from error
                asked = error.pause if isinstance(error, TransientError) else 0.0
                pause(min(max(asked, 0.5 * 2 ** (failures - 1)), MAX_PAUSE))

    def ask(
        self,
        method: str,
        url: httpx.URL,
        expected: tuple[int, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
    ) -> httpx.Response:
        """Send one request and read its answer.

        Args:
            method: such as ``HEAD``.
            url: absolute.
            expected: the status codes that the caller knows.
            headers: to send.
            body: to send.

        Raises:
            TransientError: the registry is busy or broken.
            IntegrityError: an unsafe redirect, or an answer that is too large.
            MachineError: any other refusal.
        """
        with self.stream(method, url, expected, headers=headers, body=body) as answer:
            read_limited(answer, MAX_ANSWER, self.where)
            return answer

    @contextmanager
    def stream(
        self,
        method: str,
        url: httpx.URL,
        expected: tuple[int, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
    ) -> Iterator[httpx.Response]:
        """As :meth:`ask`, with the answer's body still to be read."""
        answer = self._send(method, url, headers, body)
        try:
            if answer.status_code == _UNAUTHORISED:
                challenge = answer.headers.get("www-authenticate", "")
                answer.close()
                self._authorise(challenge)
                if isinstance(body, Iterator):  # half spent: the caller begins it anew
                    raise TransientError("the token has expired")
                answer = self._send(method, url, headers, body)
            self._check(answer, expected)
            yield answer
        finally:
            answer.close()

    def location(self, answer: httpx.Response) -> httpx.URL:
        """Where an answer says to go on; relative to where it came from.

        Raises:
            IntegrityError: there is none, or it is not safe to follow.
        """
        value = answer.headers.get("location")
        try:
            target = None if value is None else answer.url.join(value)
        except httpx.InvalidURL:
            target = None
        if target is None:
            raise IntegrityError("the registry does not say where to go on", where=self.where)
        self._check_safe(answer.url, target)
        return target

    def _send(self, method: str, url: httpx.URL, headers: Mapping[str, str] | None, body: Body) -> httpx.Response:
        target = url
        for _ in range(MAX_REDIRECTS + 1):
            sent = dict(headers or {})
            if self._authorization and _origin(target) == _origin(self.root):
                sent["Authorization"] = self._authorization
            answer = self._client.send(
                self._client.build_request(method, target, headers=sent, content=body), stream=True
            )
            # Registries redirect reads to a storage service. An upload's 202 has a Location, too, but is no redirect.
            if not answer.has_redirect_location or method not in ("GET", "HEAD"):
                return answer
            answer.close()
            target = self.location(answer)
        raise MachineError(f"redirects more than {MAX_REDIRECTS} times", where=self.where)

    def _check_safe(self, source: httpx.URL, target: httpx.URL) -> None:
        if target.scheme not in ("http", "https"):
            raise IntegrityError(
                f"the registry leads to a {target.scheme}: address, which is not followed", where=self.where
            )
        if source.scheme == "https" and target.scheme == "http":
            raise IntegrityError("the registry leads from https to http, which is not followed", where=self.where)

    def _check(self, answer: httpx.Response, expected: tuple[int, ...]) -> None:
        status = answer.status_code
        if status in expected:
            return
        if status in TRANSIENT_STATUS:
            asked = answer.headers.get("retry-after", "")
            raise TransientError(f"HTTP status {status}", float(asked) if asked.isdecimal() else 0.0)
        fix = None
        if status in (_UNAUTHORISED, _FORBIDDEN):
            fix = f"run docker login {self._host}, and check that the account may use {self.where}"
        raise MachineError(f"the registry answers {status}{self._reason(answer)}", where=self.where, fix=fix)

    def _reason(self, answer: httpx.Response) -> str:
        """The first code and message of an error (distribution-spec 1.1, "Error Codes")."""
        try:
            body: Any = jsontext.loads(read_limited(answer, MAX_ANSWER, self.where))
            first = body["errors"][0]
            return f" ({str(first['code'])[:60]}: {str(first.get('message', ''))[:200]})"
        except (ValueError, LookupError, TypeError, AttributeError, IntegrityError, httpx.HTTPError):
            return ""

    def _authorise(self, challenge: str) -> None:
        """Do what a 401 asks for: send user and password, or fetch a token first."""
        with self._lock:
            if not self._asked:
                self._credentials, self._asked = find(self._host), True
            basic = _basic(self._credentials)
            if challenge.lower().startswith("basic"):
                if basic is None:
                    fix = f"run docker login {self._host}"
                    raise MachineError("the registry wants a user and a password", where=self.where, fix=fix)
                self._authorization = basic
                return
            fields = dict(_CHALLENGE.findall(challenge))
            if not challenge.lower().startswith("bearer") or "realm" not in fields:
                raise MachineError("the registry asks for a kind of login that is not known", where=self.where)
            self._authorization = f"Bearer {self._token(fields, basic)}"

    def _token(self, fields: Mapping[str, str], basic: str | None) -> str:
        """Fetch a token (distribution, "Token Authentication Specification")."""
        try:
            realm = httpx.URL(fields["realm"])
        except httpx.InvalidURL as error:
            raise IntegrityError("the registry names no usable token service", where=self.where) from error
        self._check_safe(self.root, realm)
        if realm.scheme == "http" and realm.host != self.root.host:
            raise IntegrityError("the registry names a token service without https", where=redact(str(realm)))
        query = {key: fields[key] for key in ("service", "scope") if key in fields}
        request = self._client.build_request(
            "GET", realm.copy_merge_params(query), headers={"Authorization": basic} if basic else {}
        )
        answer = self._client.send(request, stream=True)
        try:
            self._check(answer, (200,))
            body: Any = jsontext.loads(read_limited(answer, MAX_ANSWER, self.where))
            token = body.get("token") or body.get("access_token")
        except (ValueError, AttributeError):
            token = None
        finally:
            answer.close()
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise MachineError("the token service gives no token", where=redact(str(realm)))
        return token


def pause(seconds: float) -> None:
    """Wait before the next attempt."""
    time.sleep(seconds)


def read_limited(answer: httpx.Response, limit: int, where: str) -> bytes:
    """Read the body of an answer.

    Raises:
        IntegrityError: it is larger than ``limit`` bytes.
    """
    body = bytearray()
    for data in answer.iter_raw(1 << 16):
        body += data
        if len(body) > limit:
            raise IntegrityError(f"the registry's answer is larger than {limit} bytes", where=where)
    return bytes(body)


def _basic(credentials: Credentials | None) -> str | None:
    if credentials is None:
        return None
    return "Basic " + base64.b64encode(f"{credentials.user}:{credentials.secret}".encode()).decode()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port

"""HTTP as careful as a package installer has to be: bounded, retried, and no secret to a host it was not given for."""

from __future__ import annotations

import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx

from stack_builder import __version__
from stack_builder.errors import IntegrityError, MachineError, StackbError
from stack_builder.wheels.pace import pace

T = TypeVar("T")

CONNECT_TIMEOUT = 15.0  # seconds
STALL_TIMEOUT = 30.0  # seconds without a byte
MAX_REDIRECTS = 5
ATTEMPTS = 6  # in a row without progress; the pauses between them add up to about 15 seconds
MAX_PAUSE = 20.0  # seconds, also where the server asks for more
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # httpx, pip, requests, curl
_NO_NETWORK = "check the network and the proxy settings, or give the wheels with --from DIR"


class TransientError(Exception):
    """A failure that the next attempt may not meet."""

    def __init__(self, what: str, pause: float = 0.0) -> None:
        super().__init__(what)
        self.pause = pause


class NotFoundError(StackbError):
    """The server says that there is no such page or file (404, 410)."""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole answer: where it came from after redirects, its media type, its bytes."""

    url: str
    media_type: str
    body: bytes


class Http:
    """One pool of connections, shared by threads.

    Credentials in a URL (``https://user:secret@host/simple``) are taken out when :meth:`adopt` is called and go, as
    do those of ``~/.netrc``, to the scheme, host and port they were given for and nowhere else.

    Args:
        stall: seconds without a byte after which a connection counts as dead.
        attempts: how often in a row a request may fail.
        sleep: waits between attempts; tests pass their own.
    """

    def __init__(
        self,
        *,
        stall: float = STALL_TIMEOUT,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        timeout = httpx.Timeout(stall, connect=min(CONNECT_TIMEOUT, stall), pool=None)
        agent = {"User-Agent": f"stackb/{__version__}", "Accept-Encoding": "identity"}
        self._client = pace(
            httpx.Client(timeout=timeout, headers=agent, verify=trust(), limits=httpx.Limits(max_connections=64))
        )
        self._attempts = attempts
        self._sleep = sleep
        self._secrets: dict[tuple[str, str, int | None], httpx.BasicAuth] = {}
        self._netrc = _read_netrc()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def adopt(self, url: str) -> str:
        """Remember the credentials that a configured URL holds and give the URL without them."""
        parts = httpx.URL(url)
        if parts.userinfo:
            with self._lock:
                self._secrets[_origin(parts)] = httpx.BasicAuth(parts.username, parts.password)
        return str(parts.copy_with(username=None, password=None)) if parts.userinfo else url

    def retry(self, action: Callable[[], T], url: str) -> T:
        """Call ``action`` until it does not fail for a passing reason.

        Raises:
            MachineError: it failed ``attempts`` times.
        """
        backoff = self.backoff(url)
        while True:
            try:
                return action()
            except (TransientError, httpx.TransportError) as error:
                backoff.wait(error)

    def backoff(self, url: str) -> Backoff:
        """Count the failures of one download."""
        return Backoff(url, self._attempts, self._sleep)

    def page(self, url: str, *, accept: str, limit: int) -> Page:
        """Get a whole answer of at most ``limit`` bytes.

        Raises:
            NotFoundError: 404 or 410.
            IntegrityError: larger than ``limit``.
            MachineError: no answer, or one that says no.
        """

        def get() -> Page:
            with self.open(url, {"Accept": accept, "Accept-Encoding": "gzip"}) as response:
                body = bytearray()
                for data in response.iter_bytes(1 << 16):
                    body += data
                    if len(body) > limit:
                        raise IntegrityError(f"answer is larger than {limit} bytes", where=redact(url))
                media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                return Page(str(response.url), media_type, bytes(body))

        return self.retry(get, url)

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Send one GET, follow its redirects, and give the open answer (200 or 206); the body is not yet read.

        Raises:
            TransientError: the server is busy or broken.
            NotFoundError: 404 or 410.
            IntegrityError: a redirect to another scheme, or from https to http.
            MachineError: any other refusal.
        """
        response = self._follow(url, headers)
        try:
            _check_status(response, url)
            yield response
        finally:
            response.close()

    def _follow(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        try:
            target = httpx.URL(url)
            for _ in range(MAX_REDIRECTS + 1):
                if target.scheme not in ("http", "https"):
                    raise IntegrityError(
                        f"leads to a {target.scheme}: address, which is not followed", where=redact(url)
                    )
                response = self._send(target, headers)
                if not response.has_redirect_location:
                    return response
                response.close()
                following = target.join(response.headers["location"])
                if target.scheme == "https" and following.scheme == "http":
                    raise IntegrityError("redirects from https to http, which is not followed", where=redact(url))
                target = following
        except httpx.InvalidURL as error:
            raise IntegrityError(f"it, or what it redirects to, is no URL: {error}", where=redact(url)) from error
        raise MachineError(f"redirects more than {MAX_REDIRECTS} times", where=redact(url))

    def _send(self, target: httpx.URL, headers: Mapping[str, str]) -> httpx.Response:
        request = self._client.build_request("GET", target, headers=headers)
        try:
            return self._client.send(request, stream=True, auth=self._auth(target))
        except httpx.ConnectError as error:
            if "CERTIFICATE" not in str(error).upper():
                raise
            fix = "name the certificate authority of your network in SSL_CERT_FILE"
            raise MachineError(
                f"its certificate is not trusted ({error})", where=redact(str(target)), fix=fix
            ) from error

    def _auth(self, url: httpx.URL) -> httpx.Auth:
        with self._lock:
            known = self._secrets.get(_origin(url))
        if known is None and self._netrc and url.scheme == "https" and (found := self._netrc.authenticators(url.host)):
            known = httpx.BasicAuth(found[0], found[2] or "")
        return known or httpx.Auth()


class Backoff:
    """Waits longer after each failure; starts again when :meth:`progress` is called."""

    def __init__(self, url: str, attempts: int, sleep: Callable[[float], object]) -> None:
        self._url, self._attempts, self._sleep = url, attempts, sleep
        self._failures = 0

    def progress(self) -> None:
        """Forget the failures so far: bytes have arrived."""
        self._failures = 0

    def wait(self, error: Exception) -> None:
        """Pause before the next attempt.

        Raises:
            MachineError: that was the last one.
        """
        self._failures += 1
        if self._failures >= self._attempts:
            raise MachineError(
                f"no usable answer after {self._failures} attempts ({describe(error)})",
                where=redact(self._url),
                fix=_NO_NETWORK,
            ) from error
        asked = error.pause if isinstance(error, TransientError) else 0.0
        pause = max(asked, 0.5 * 2 ** (self._failures - 1) * random.uniform(0.7, 1.3))  # noqa: S311 - not a secret
        self._sleep(min(pause, MAX_PAUSE))


def trust() -> ssl.SSLContext | bool:
    """The certificate authorities that the user's other installers trust; httpx's own default if none is named.

    Raises:
        MachineError: what is named holds none.
    """
    for variable in _CA_VARIABLES:
        if (path := os.environ.get(variable)) and Path(path).exists():
            try:
                if Path(path).is_dir():
                    return ssl.create_default_context(capath=path)
                return ssl.create_default_context(cafile=path)
            except (ssl.SSLError, OSError) as error:
                what = f"{variable} names it, but it holds no certificates that can be read"
                raise MachineError(what, where=path, fix=f"correct {variable} or unset it") from error
    return True


def redact(url: str) -> str:
    """Give a URL fit for a message: without user, password, query (signed addresses) and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def describe(error: Exception) -> str:
    """Say what went wrong with a connection, for people."""
    match error:
        case httpx.ConnectTimeout():
            return "connecting timed out"
        case httpx.TimeoutException():
            return "the server sent nothing for too long"
        case httpx.RemoteProtocolError():
            return "the connection broke off"
        case _:
            return str(error) or type(error).__name__


def content_range(response: httpx.Response) -> tuple[int, int, int] | None:
    """First byte, last byte and size of the whole file, as Content-Range says (RFC 9110, 14.4); None if it does not."""
    told = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    return None if told is None else (int(told[1]), int(told[2]), int(told[3]))


def _check_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if status in TRANSIENT_STATUS:
        asked = response.headers.get("retry-after", "")
        raise TransientError(f"HTTP status {status}", float(asked) if asked.isdecimal() else 0.0)
    if status in (404, 410):
        raise NotFoundError(f"not there (HTTP status {status})", where=redact(url))
    fix = "give the index's credentials in its URL or in ~/.netrc" if status in (401, 403, 407) else None
    raise MachineError(f"server answers with HTTP status {status}", where=redact(url), fix=fix)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _read_netrc() -> netrc | None:
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc(path)
    except (OSError, NetrcParseError):  # absent, unreadable or malformed: go on without, as pip does
        return None

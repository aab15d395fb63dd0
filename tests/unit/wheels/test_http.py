"""Connections: retried within bounds, secrets kept to their host, redirects only where they are harmless."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.wheels.http import Http, NotFoundError, redact
from tests.hardening.plugin import Recorder


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def http(pauses: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Http]:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with Http(stall=0.3, attempts=4, sleep=pauses.append) as client:
        yield client


def page(http: Http, url: str, limit: int = 1000) -> bytes:
    return http.page(url, accept="*/*", limit=limit).body


def test_retries_what_may_pass_and_waits_longer_each_time(index_server: Any, http: Http, pauses: list[float]) -> None:
    index_server.files["/a"] = b"content"
    index_server.faults["/a"] = deque(["500", "cut:3", "stall:2"])
    assert page(http, f"{index_server.url}/a") == b"content"
    assert len(index_server.log) == 4
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


def test_gives_up_in_one_line(index_server: Any, http: Http) -> None:
    index_server.faults["/a"] = deque(["500"] * 9)
    with pytest.raises(MachineError, match=r"after 4 attempts \(HTTP status 500\)\. Check the network"):
        page(http, f"{index_server.url}/a")
    assert len(index_server.log) == 4
    with pytest.raises(MachineError, match="no usable answer after 4 attempts"):
        page(http, "http://127.0.0.1:9/nothing-listens-here")


def test_does_not_retry_what_will_not_change(index_server: Any, http: Http) -> None:
    with pytest.raises(NotFoundError):
        page(http, f"{index_server.url}/gone")
    index_server.faults["/secret"] = deque(["401"])
    with pytest.raises(MachineError, match=r"401.*credentials"):
        page(http, f"{index_server.url}/secret")
    assert len(index_server.log) == 2


def test_bounds_the_answer(index_server: Any, http: Http) -> None:
    index_server.files["/big"] = bytes(5000)
    with pytest.raises(IntegrityError, match="larger than 4999 bytes"):
        page(http, f"{index_server.url}/big", 4999)
    assert len(page(http, f"{index_server.url}/big", 5000)) == 5000


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_follows_redirects_within_the_web_only(index_server: Any, http: Http, target: str) -> None:
    index_server.faults["/a"] = deque([f"to:{target}"])
    with pytest.raises(IntegrityError, match=r"not followed|is no URL"):
        page(http, f"{index_server.url}/a")


def test_redirects_end(index_server: Any, http: Http) -> None:
    index_server.files["/b"] = b"content"
    index_server.faults["/a"] = deque(["to:/b"])
    assert page(http, f"{index_server.url}/a") == b"content"
    index_server.faults["/loop"] = deque(["to:/loop"] * 20)
    with pytest.raises(MachineError, match="redirects more than 5 times"):
        page(http, f"{index_server.url}/loop")


def test_credentials_stay_with_their_host(index_server: Any, http: Http, hardened: Recorder) -> None:
    with_secret = index_server.url.replace("http://", "http://user:s3cret@")
    assert http.adopt(with_secret) == index_server.url
    index_server.files["/a"] = b"content"
    elsewhere = index_server.url.replace("127.0.0.1", "localhost")
    index_server.faults["/a"] = deque([f"to:{elsewhere}/a"])
    page(http, f"{index_server.url}/a")
    told = [request.headers.get("Authorization") for request in index_server.log]
    assert told == [f"Basic {base64.b64encode(b'user:s3cret').decode()}", None]
    hardened("indexes", "redirect to another host, with a password for the first")


def test_messages_hold_no_secret(index_server: Any, http: Http) -> None:
    url = index_server.url.replace("http://", "http://user:s3cret@") + "/a?token=s3cret#s3cret"
    with pytest.raises(NotFoundError) as caught:
        page(http, url)
    for text in (redact(url), str(caught.value)):
        assert "s3cret" not in text
        assert "/a" in text


def test_unreadable_netrc_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine machine machine")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    Http().close()

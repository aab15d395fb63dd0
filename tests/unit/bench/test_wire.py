"""Framing and events, in every way that a socket can cut them; the oracle for framing is http.client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
from collections.abc import Iterable

import pytest

from stack_builder.bench.pool import Pool
from stack_builder.bench.stream import Api, Counted, EventStream, body
from stack_builder.bench.wire import Connection, Endpoint, ErrorKind, ExchangeError, Whole
from stack_builder.errors import UsageError


def event(value: object, *, compact: bool = True) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":") if compact else None).encode() + b"\n\n"


def text_event(text: str, *, compact: bool = True) -> bytes:
    return event(
        {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None}, compact=compact
    )


USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
DONE = b"data: [DONE]\n\n"
EVENTS = [text_event("a"), text_event('b "text":"" \n'), b": ping\n\n", text_event(""), text_event("c"), USAGE, DONE]


def chunked(pieces: Iterable[bytes], extra: bytes = b"") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x%s\r\n%s\r\n" % (len(p), extra, p) for p in pieces) + b"0\r\n\r\n"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def exchange(data: bytes, sink: Whole | EventStream, step: int, *, close: bool = False) -> int:
    connection = Connection(bytearray(1 << 16))
    connection.connection_made(FakeTransport())
    waiting = asyncio.ensure_future(connection.exchange(b"", sink, patience=60))
    await asyncio.sleep(0)
    for at in range(0, len(data), step):
        part = data[at : at + step]
        connection.get_buffer(-1)[: len(part)] = part
        connection.buffer_updated(len(part))
    if close:
        connection.connection_lost(None)
    return await waiting


def by_http_client(data: bytes) -> bytes:
    class Socket:
        def makefile(self, *_: object) -> io.BytesIO:
            return io.BytesIO(data)

    response = http.client.HTTPResponse(Socket())  # type: ignore[arg-type]
    response.begin()
    return response.read()


@pytest.mark.parametrize("extra", [b"", b";name=value"])
def test_the_body_is_http_clients_however_it_arrives(extra: bytes) -> None:
    data = chunked([b"one", b"t" * 300, b"\r\n\r\n0\r\n"], extra)
    for step in (1, 2, 3, 7, 100, len(data)):
        sink = Whole()
        assert asyncio.run(exchange(data, sink, step)) == 200
        assert bytes(sink.body) == by_http_client(data)


@pytest.mark.parametrize("step", [1, 2, 5, 17, 64, 10_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_with_text_are_counted_however_they_are_cut(step: int, newline: bytes) -> None:
    pieces = [part.replace(b"\n", newline) for part in EVENTS]
    for framing in (pieces, [b"".join(pieces)], [b"".join(pieces)[i : i + 11] for i in range(0, 400, 11)]):
        stream = EventStream(Api.COMPLETIONS)
        whole = b"".join(framing)
        asyncio.run(exchange(chunked(framing), stream, step))
        if whole == b"".join(pieces):
            assert len(stream.times) == 3
            assert stream.counted() == Counted(5, 3)


def test_a_body_without_length_ends_with_the_connection() -> None:
    sink = Whole()
    assert asyncio.run(exchange(b"HTTP/1.0 200 OK\r\n\r\nhello", sink, 4, close=True)) == 200
    assert bytes(sink.body) == b"hello"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", ErrorKind.TRUNCATED),
        (b"", ErrorKind.RESET),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ErrorKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", ErrorKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", ErrorKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", ErrorKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ErrorKind.TRUNCATED),
        (b"H" * (1 << 17), ErrorKind.PROTOCOL),
    ],
)
def test_a_bad_answer_is_classified(data: bytes, kind: ErrorKind) -> None:
    with pytest.raises(ExchangeError) as caught:
        asyncio.run(exchange(data, Whole(), 1000, close=True))
    assert caught.value.kind is kind


def fed(api: Api, *events: bytes) -> EventStream:
    stream = EventStream(api)
    for number, one in enumerate(events):
        stream.feed(one, float(number))
    return stream


def test_keys_spelled_with_a_space_are_found() -> None:
    stream = fed(Api.COMPLETIONS, *(text_event(t, compact=False) for t in ("", "a", "", "b")), USAGE, DONE)
    assert stream.times == [1.0, 3.0]


def test_chat_counts_reasoning_and_content() -> None:
    def delta(**values: object) -> bytes:
        return event({"choices": [{"index": 0, "delta": values}]})

    stream = fed(
        Api.CHAT,
        delta(role="assistant", content=""),
        delta(reasoning_content="hm", content=None),
        delta(reasoning_content="hm", content=None),
        delta(content="so"),
        delta(content="x"),
        delta(content=""),
        event({"choices": [], "usage": {"completion_tokens": 9}}),
        DONE,
    )
    assert stream.times == [1.0, 2.0, 3.0, 4.0]
    assert stream.counted().tokens == 9


def test_generate_gives_verify_steps() -> None:
    events = [
        event({"text": "a" * n, "meta_info": {"completion_tokens": 3 * n, "prompt_tokens": 2, "spec_verify_ct": n}})
        for n in (1, 2)
    ]
    stream = fed(Api.GENERATE, *events, DONE)
    assert stream.counted() == Counted(6, 2, 2)
    assert stream.times == [0.0, 1.0]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([text_event("a")], ErrorKind.TRUNCATED),
        ([text_event("a"), DONE], ErrorKind.USAGE),
        ([event({"error": {"message": "no memory"}})], ErrorKind.STREAM),
        ([text_event("a"), event({"object": "error", "error": "no memory"})], ErrorKind.STREAM),
        ([event({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "x"}}})], ErrorKind.STREAM),
        ([b"data: {half\n\n"], ErrorKind.PROTOCOL),
        ([b"data: [1]\n\n"], ErrorKind.PROTOCOL),
    ],
)
def test_a_stream_that_does_not_count_says_why(events: list[bytes], kind: ErrorKind) -> None:
    with pytest.raises(ExchangeError) as caught:
        fed(Api.COMPLETIONS, *events).counted()
    assert caught.value.kind is kind


def test_requests_ask_for_equal_work() -> None:
    chat = json.loads(body(Api.CHAT, "hé", tokens=7, model="m"))
    assert chat["messages"] == [{"role": "user", "content": "hé"}]
    assert (chat["max_tokens"], chat["ignore_eos"], chat["temperature"]) == (7, True, 0.0)
    assert chat["stream_options"] == {"include_usage": True}
    generate = json.loads(body(Api.GENERATE, "x", tokens=7, model="m"))
    assert generate["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 7, "ignore_eos": True}


@pytest.mark.parametrize(
    "url", ["127.0.0.1:30000", "ftp://x", "http://", "http://x:99999", "http://u:p@x/", "http://x/?q"]
)
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint.of(url)


def test_an_endpoint_keeps_path_and_brackets() -> None:
    point = Endpoint.of("https://[::1]/prefix/")
    assert (point.host, point.port, point.secure) == ("::1", 443, True)
    assert point.request("GET", "/x").startswith(b"GET /prefix/x HTTP/1.1\r\nHost: [::1]:443\r\n")


@pytest.mark.parametrize("whole", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=["head", "body"])
@pytest.mark.parametrize("sink", [Whole(), EventStream(Api.COMPLETIONS)], ids=["whole", "events"])
def test_an_answer_that_trickles_ends_with_the_time_limit(sink: Whole | EventStream, whole: bytes) -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.transport.abort()
        ended.set()

    ended = asyncio.Event()

    async def go() -> None:
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        endpoint = Endpoint.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        pool = Pool(endpoint, patience=0.3)
        try:
            await pool.send(endpoint.request("GET", "/"), sink)
        finally:
            pool.close()
            server.close()
            await ended.wait()

    with pytest.raises(ExchangeError, match=r"no whole answer within 0.3 s, though bytes came") as caught:
        asyncio.run(go())
    assert caught.value.kind is ErrorKind.TIMEOUT

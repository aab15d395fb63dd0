"""Logs, model folders, and what servers answer."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from rich.console import Console

from stack_builder.bench.stream import Api, EventStream
from stack_builder.bench.wire import Connection, ExchangeError, Whole
from stack_builder.diagnose.explain.telling import explain
from stack_builder.diagnose.running import judge_running
from stack_builder.report.json import to_json
from stack_builder.report.sarif import to_sarif
from stack_builder.report.text import render_text
from stack_builder.serve import activity
from stack_builder.serve.client import ServerClient
from stack_builder.serve.plan import LaunchPlan
from stack_builder.sglang import checkpoint
from tests.fuzz.archives import scratch
from tests.fuzz.mutate import mutate_bytes, mutate_json, mutate_text
from tests.fuzz.runner import Target

_LOGS = Path(__file__).parents[1] / "corpus" / "server-logs"


# --- logs ---


@cache
def _log_texts() -> tuple[str, ...]:
    return tuple(path.read_text(errors="replace")[-6000:] for path in sorted(_LOGS.glob("*.log")))


def make_log(chance: random.Random) -> bytes:
    tokens = (
        "\x1b[31m", "\x1b]8;;http://x\x1b\\", "\x9b2J", "\u2066", "Traceback (most recent call last):", "RuntimeError: ",
        "undefined symbol: _ZN3c10", "_Z" + "N1a" * 300, "ImportError: ", "[1/2] ", "{symbol}", "\r",
    )  # fmt: skip
    data = mutate_text(chance.choice(_log_texts()), chance, tokens)
    if chance.random() < 0.05:
        return data.decode("utf-8", "replace").encode("utf-16")
    return data


def examine_log(data: bytes) -> None:
    """Explain it in all three views; no control character may reach a terminal."""
    report = explain(io.BytesIO(data), "log")
    out = io.StringIO()
    render_text(report, Console(file=out, width=100, color_system=None))
    assert all(c.isprintable() or c == "\n" for c in out.getvalue()), "a control character reached the text"
    to_json(report)
    to_sarif(report)


# --- models ---

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "torch_dtype": "bfloat16",
    "text_config": {"num_attention_heads": 8, "max_position_embeddings": 4096, "rope_scaling": {"factor": 2}},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
}


def make_config(chance: random.Random) -> bytes:
    return mutate_json(_CONFIG, chance)


def examine_config(data: bytes) -> None:
    with scratch() as folder:
        (folder / "config.json").write_bytes(data)
        read = checkpoint.read(folder)
    assert read.context_length is not None
    assert read.dtype is None or isinstance(read.dtype, str)
    read.number("hidden_size", "vocab_size")
    checkpoint.auxiliary_layers(read.config)


def _entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


_HEADER = {"__metadata__": {"format": "pt"}, "a": _entry("BF16", [2, 3], 0, 12), "d2t": _entry("I64", [2], 12, 28)}
_INDEX = {"metadata": {"total_size": 28}, "weight_map": {"a": "m.safetensors", "d2t": "m.safetensors"}}


def make_safetensors(chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return b"I" + mutate_json(_INDEX, chance)
    text = mutate_json(_HEADER, chance)
    data = struct.pack("<Q", len(text)) + text + bytes(28)
    return b"S" + (mutate_bytes(data, chance) if chance.random() < 0.2 else data)


def examine_safetensors(data: bytes) -> None:
    with scratch() as folder:
        (folder / "config.json").write_text("{}")
        (folder / "m.safetensors").write_bytes(data[1:])
        if data[:1] == b"I":
            (folder / "model.safetensors.index.json").write_bytes(data[1:])
        read = checkpoint.read(folder)
        for tensor in read.tensors.values():
            checkpoint.read_map(tensor)
        read.tensor("d2t", "a")


# --- a running server ---

_INFO = {
    "version": "0.5.23",
    "max_running_requests": 48,
    "tp_size": 1,
    "speculative_algorithm": "EAGLE3",
    "api_key": "secret",
    "internal_states": [{"effective_max_running_requests_per_dp": 48}],
}
_GENERATED = {"text": "x", "meta_info": {"completion_tokens": 64, "spec_verify_ct": 20}}
_METRICS = (
    '# HELP x\n# TYPE x counter\nsglang:num_running_reqs{a="b"} 1.0\nsglang:spec_verify_calls_total 10\n'
    'sglang:generation_tokens_total 1e3\nsglang:num_retracted_requests_total{x="}"} NaN 123\n'
)


def make_server(chance: random.Random) -> bytes:
    parts = [json.dumps(_INFO).encode(), json.dumps(_GENERATED).encode(), _METRICS.encode()]
    which = chance.randrange(3)
    parts[which] = (
        mutate_text(_METRICS, chance, ("{", "}", "NaN", "+Inf", "sglang:"))
        if which == 2
        else mutate_json(json.loads(parts[which]), chance)
    )
    return b"\0PART\0".join(parts)


def examine_server(data: bytes) -> None:
    """As ``serve`` asks, and as ``bench`` does."""
    info, generated, metrics = data.split(b"\0PART\0")[:3]
    bodies = {"/server_info": info, "/v1/loads": info, "/generate": generated, "/metrics": metrics, "/v1/models": info}
    client = ServerClient("http://127.0.0.1:1")
    client._http = httpx.Client(
        base_url=client.url,
        transport=httpx.MockTransport(lambda request: httpx.Response(200, content=bodies.get(request.url.path, b"{}"))),
    )
    arguments = ("--speculative-algorithm", "EAGLE3", "--max-running-requests", "64", "--enable-metrics")
    plan = cast(LaunchPlan, SimpleNamespace(server_arguments=arguments, env={}))
    with client:
        judge_running(activity.collect(client, plan, Path(os.devnull)))


class _Transport(asyncio.Transport):
    """Takes what is written; the answer comes from the input."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed


_EVENTS = (
    b'data: {"choices":[{"text":"a","finish_reason":null}],"usage":null}\n\n'
    b'data: {"choices":[{"text":"bc"}]}\n\n: comment\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":2}}\n\ndata: [DONE]\n\n'
)


def make_wire(chance: random.Random) -> bytes:
    events = (
        mutate_bytes(_EVENTS, chance, (b"\n\n", b"data: ", b"[DONE]", b"\r\n")) if chance.random() < 0.6 else _EVENTS
    )
    if chance.random() < 0.7:
        size = max(1, chance.randrange(200))
        pieces = [events[at : at + size] for at in range(0, len(events), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    else:
        body, head = events, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(events)
    if chance.random() < 0.1:
        head = b"HTTP/1.1 100 Continue\r\n\r\n" * chance.choice((1, 3000)) + head
    data = head + body
    tokens = (
        b"\r\n",
        b"\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"-1\r\n",
        b"0\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"\xb2",
    )
    return mutate_bytes(data, chance, tokens) if chance.random() < 0.6 else data


def examine_wire(data: bytes) -> None:
    for sink in (EventStream(Api.COMPLETIONS), EventStream(Api.GENERATE), EventStream(Api.CHAT), Whole()):
        asyncio.run(_exchange(data, sink))


async def _exchange(data: bytes, sink: EventStream | Whole) -> None:
    buffer = bytearray(1 << 16)
    connection = Connection(buffer)
    connection.connection_made(_Transport())
    waiting = asyncio.ensure_future(connection.exchange(b"GET", sink, patience=60))
    await asyncio.sleep(0)
    step = 1 + len(data) // 7
    for at in range(0, len(data), step):
        piece = data[at : at + min(step, len(buffer))]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))
    connection.connection_lost(None)
    with suppress(ExchangeError):
        await waiting
        if isinstance(sink, EventStream):
            sink.counted()


TARGETS = {
    "log": Target(make_log, examine_log),
    "config": Target(make_config, examine_config),
    "safetensors": Target(make_safetensors, examine_safetensors),
    "server": Target(make_server, examine_server),
    "wire": Target(make_wire, examine_wire),
}

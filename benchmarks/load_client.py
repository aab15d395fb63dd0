"""How many tokens a second of the client's processor time buys: stackb bench beside bench_serving and GuideLLM.

One local server writes a ready-made event to every open stream at each tick, so that all clients read the same bytes at
the same pace. What counts is the processor time (user and system, children included) of the client process; a small run
is subtracted, so that imports and warm-up are not in it. Every client's own result file must hold all requests.

2026-11-30, two cores (x86-64) shared with other work, 250 streams of 128 tokens, CPython 3.11: stackb bench 47,771
tokens per CPU second, SGLang 0.5.23's bench_serving 17,287, GuideLLM 0.8.1 (its children included, no torch) 3,247:
2.8 times the better of them.

    python benchmarks/load_client.py [PEERS]     # a folder of benchmarks/peers.py; without one, stackb alone
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import peers

from stack_builder.bench.foreign import import_file
from stack_builder.bench.results import read

TICK = 0.02  # seconds between two tokens of a stream
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(event: object) -> bytes:
    data = (
        event if isinstance(event, bytes) else b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    )
    return b"%x\r\n%s\r\n" % (len(data), data)


def _completion(text: str, finish: str | None = None) -> dict[str, object]:
    """The shape and size of SGLang's own chunks."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    return {
        "id": "6f0c7ad2a58b4f4b8f5d0cdd1a2b3c4d",
        "object": "text_completion",
        "created": 1764460800,
        "model": "default",
        "choices": [choice],
        "usage": None,
    }


class _Stream(asyncio.Protocol):
    """One connection of the server: answers a generation at the pace of the tick, anything else at once."""

    token = _chunk(_completion(" word"))
    open: ClassVar[set[_Stream]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received, self.left, self.wanted = transport, b"", 0, 0

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, rest = self.received.partition(b"\r\n\r\n")
        length = next((int(h[15:]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
        if not separator or len(rest) < length:
            return
        self.received = rest[length:]
        if b"/v1/completions" not in head.split(b"\r\n", 1)[0]:
            found = b"/v1/models" in head
            body = b'{"object":"list","data":[{"id":"default","object":"model"}]}' if found else b"{}"
            status = b"200 OK" if found or b"/health" in head else b"404 Not Found"
            kind = b"Content-Type: application/json\r\n"
            self.transport.write(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, kind, len(body), body))
            return
        asked = json.loads(rest[:length])
        self.wanted = self.left = int(asked.get("max_tokens") or asked["max_completion_tokens"])
        self.usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self.transport.write(_HEAD)
        self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self)

    def tick(self) -> None:
        self.left -= 1
        if self.left >= 0:
            self.transport.write(self.token)
            return
        self.open.discard(self)
        usage = {"prompt_tokens": 8, "completion_tokens": self.wanted, "total_tokens": 8 + self.wanted}
        last = {**_completion("", "length"), "choices": [], "usage": usage}
        count = _chunk(last) if self.usage else b""  # bench_serving does not ask for it, nor expect it
        end = _chunk(_completion("", "length")) + count + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.transport.write(end)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Stream, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    due = loop.time()
    while True:
        due = max(due + TICK, loop.time())
        await asyncio.sleep(due - loop.time())
        for stream in list(_Stream.open):
            stream.tick()


def measure(name: str, command: Callable[[int], tuple[Sequence[str], Path]], streams: int, tokens: int) -> float:
    """Tokens per processor second of what a large run adds to a small one."""
    small, large = 1, 6  # requests of each stream
    spent = _spent(name, command, streams * large) - _spent(name, command, streams * small)
    count = (large - small) * streams * tokens
    print(f"{name:<14}{spent:8.2f} s for {count} tokens: {count / spent:10.0f} tokens per CPU second", flush=True)
    return count / spent


def _spent(name: str, command: Callable[[int], tuple[Sequence[str], Path]], requests: int) -> float:
    words, result = command(requests)
    seconds = peers.cpu_seconds(words, result.parent)
    found = read(result) if name == "stackb bench" else import_file(result)
    if found.runs[-1].figures.completed != requests:
        sys.exit(f"{name} completed {found.runs[-1].figures.completed} of {requests} requests")
    result.unlink()
    return seconds


def main() -> None:
    """Run the clients that are at hand, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path, nargs="?")
    parser.add_argument("--streams", type=int, default=250)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve())
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        _compare(options, int(server.stdout.readline()))
    finally:
        server.kill()
        server.wait()


def _compare(options: argparse.Namespace, port: int) -> None:
    url, streams, tokens = f"http://127.0.0.1:{port}", options.streams, options.tokens
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)

        def stackb(requests: int) -> tuple[list[str], Path]:
            words = [sys.executable, "-m", "stack_builder", "bench", url, "--no-log", "--tokens", str(tokens)]
            words += ["--concurrency", str(streams), "--requests", str(requests // streams)]
            return [*words, "--output", str(place / "stackb.json")], place / "stackb.json"

        def bench_serving(requests: int) -> tuple[list[str], Path]:
            words = [*peers.bench_serving(options.peers), "--backend", "sglang-oai", "--base-url", url]
            words += ["--dataset-name", "random-ids", "--random-input-len", "16", "--random-output-len", str(tokens)]
            words += ["--random-range-ratio", "1.0", "--num-prompts", str(requests), "--max-concurrency", str(streams)]
            words += ["--model", str(peers.tokenizer(options.peers)), "--served-model-name", "default"]
            return [*words, "--output-file", str(place / "b.jsonl"), "--disable-tqdm"], place / "b.jsonl"

        def guidellm(requests: int) -> tuple[list[str], Path]:
            words = [*peers.guidellm(options.peers), "run", "--disable-console"]
            words += ["--backend", f"kind=openai_http,target={url},model=default,request_format=/v1/completions"]
            words += ["--profile", f"kind=concurrent,streams={streams}"]
            words += ["--constraint", f"kind=max_requests,count={requests}"]
            words += ["--tokenizer", f"kind=huggingface_auto,model={peers.tokenizer(options.peers)}"]
            words += ["--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={tokens}"]
            return [*words, "--output", f"kind=json,path={place / 'g.json'}"], place / "g.json"

        own = measure("stackb bench", stackb, streams, tokens)
        if options.peers:
            options.peers = options.peers.absolute()
            theirs = {"bench_serving": bench_serving, "GuideLLM": guidellm}
            best = max(measure(name, command, streams, tokens) for name, command in theirs.items())
            print(f"stackb bench takes {own / best:.1f} times the tokens of the better of them")


if __name__ == "__main__":
    main()

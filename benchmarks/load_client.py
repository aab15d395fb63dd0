"""How many tokens a second of the client's processor time buys: stackb bench beside bench_serving and GuideLLM.

One local server writes a ready-made event to every open stream at each tick, so that all clients read the same bytes at
the same pace. What counts is the processor time (user and system, children included) of the client process; a small run
is subtracted, so that imports and warm-up are not in it.

    python benchmarks/load_client.py [--bench-serving PYTHON] [--guidellm EXE] [--tokenizer DIR]

``PYTHON`` is an interpreter that can ``import sglang.bench_serving``; both peers need a tokenizer folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

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
        self.wanted = self.left = int(json.loads(rest[:length])["max_tokens"])
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
        end = _chunk(_completion("", "length")) + _chunk(last) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
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


def _cpu(words: Sequence[str], env: dict[str, str]) -> float:
    """Processor seconds of a command and its children."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, stdout=output, stderr=output, env={**os.environ, **env})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            sys.exit(f"{words[0]} ended with {child.returncode}: {output.read()[-2000:].decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime


def measure(
    name: str, command: Callable[[int], Sequence[str]], streams: int, tokens: int, env: dict[str, str]
) -> float:
    """Tokens per processor second of what a large run adds to a small one."""
    small, large = 1, 6  # requests of each stream
    spent = _cpu(command(streams * large), env) - _cpu(command(streams * small), env)
    rate = (large - small) * streams * tokens / spent
    print(
        f"{name:<14} {spent:8.2f} s for {(large - small) * streams * tokens} tokens: {rate:10.0f} tokens per CPU second"
    )
    return rate


def main() -> None:
    """Run the clients that are at hand, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench-serving", metavar="PYTHON")
    parser.add_argument("--guidellm", metavar="EXE")
    parser.add_argument("--tokenizer", metavar="DIR")
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
        env = {"STACKB_STATE_DIR": scratch, "HF_HUB_OFFLINE": "1"}

        def stackb(requests: int) -> list[str]:
            words = [sys.executable, "-m", "stack_builder", "bench", url, "--no-log", "--tokens", str(tokens)]
            return [*words, "--concurrency", str(streams), "--requests", str(requests // streams)]

        def bench_serving(requests: int) -> list[str]:
            words = [options.bench_serving, "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", url]
            words += ["--dataset-name", "random", "--random-input-len", "16", "--random-output-len", str(tokens)]
            words += ["--random-range-ratio", "1.0", "--num-prompts", str(requests), "--max-concurrency", str(streams)]
            words += ["--model", "default", "--tokenizer", options.tokenizer, "--tokenize-prompt"]
            return [*words, "--output-file", str(Path(scratch) / "bench_serving.jsonl"), "--disable-tqdm"]

        def guidellm(requests: int) -> list[str]:
            words = [
                options.guidellm,
                "benchmark",
                "run",
                "--target",
                url,
                "--model",
                "default",
                "--profile",
                "concurrent",
            ]
            words += ["--rate", str(streams), "--max-requests", str(requests), "--processor", options.tokenizer]
            words += ["--data", f"prompt_tokens=16,output_tokens={tokens}", "--request-type", "text_completions"]
            return [*words, "--output-dir", scratch, "--disable-console"]

        own = measure("stackb bench", stackb, streams, tokens, env)
        peers = {}
        if options.bench_serving:
            peers["bench_serving"] = measure("bench_serving", bench_serving, streams, tokens, env)
        if options.guidellm:
            peers["guidellm"] = measure("GuideLLM", guidellm, streams, tokens, env)
        if peers:
            print(f"stackb bench takes {own / max(peers.values()):.1f} times the tokens of the better of them")


if __name__ == "__main__":
    main()

"""Result files as bench_serving, GuideLLM and AIPerf write them, imported: of one load each, against the server's book.

Waits for ``STACKB_TEST_PEERS=DIR``, a folder for their environments (``benchmarks/peers.py`` makes them: 1.5 GB).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stack_builder.bench.foreign import import_file

FOLDER = os.environ.get("STACKB_TEST_PEERS")
pytestmark = [
    pytest.mark.online,
    pytest.mark.timeout(600),
    pytest.mark.skipif(FOLDER is None, reason="STACKB_TEST_PEERS=DIR is not set"),
]
ROOT = Path(__file__).parents[2]
CLIENTS, REQUESTS, TOKENS = 4, 16, 32
RATE, PREFILL = 100.0, 0.1  # of the server: 0.42 s a request


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", ROOT / "benchmarks" / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ROOT / "tests" / "fixtures" / "llm" / "server.py"
    words = [sys.executable, server, "--rate", str(RATE), "--prefill", str(PREFILL)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    child.kill()
    child.wait()
    child.stdout.close()


def sent(url: str) -> int:
    """Tokens that the server has sent."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("sglang:generation_tokens_total"))


def bench_serving(peers: ModuleType, folder: Path, url: str, tokenizer: Path, out: Path) -> list[Path]:
    words = ["--backend", "sglang-oai", "--base-url", url, "--model", tokenizer, "--served-model-name", "law"]
    words += ["--dataset-name", "random-ids", "--random-input-len", "16", "--random-output-len", TOKENS]
    words += ["--random-range-ratio", "1.0", "--num-prompts", REQUESTS, "--max-concurrency", CLIENTS]
    words += ["--warmup-requests", "0", "--output-file", out / "b.jsonl", "--disable-tqdm"]
    peers.cpu_seconds([*peers.bench_serving(folder), *map(str, words)], out)
    return [out / "b.jsonl"]


def guidellm(peers: ModuleType, folder: Path, url: str, tokenizer: Path, out: Path) -> list[Path]:
    words = ["run", "--disable-console", "--output", f"kind=json,path={out / 'g.json'}"]
    words += ["--backend", f"kind=openai_http,target={url},model=law,request_format=/v1/completions"]
    words += ["--profile", f"kind=concurrent,streams={CLIENTS}", "--constraint", f"kind=max_requests,count={REQUESTS}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}"]
    peers.cpu_seconds([*peers.guidellm(folder), *words], out)
    return [out / "g.json"]


def aiperf(peers: ModuleType, folder: Path, url: str, tokenizer: Path, out: Path) -> list[Path]:
    words = ["profile", "--model", "law", "--url", url, "--endpoint-type", "completions", "--streaming"]
    words += ["--concurrency", CLIENTS, "--request-count", REQUESTS, "--tokenizer", tokenizer]
    words += ["--synthetic-input-tokens-mean", "16", "--output-tokens-mean", TOKENS, "--artifact-dir", out / "aiperf"]
    words += ["--use-server-token-count", "--ui", "none"]
    peers.cpu_seconds([*peers.aiperf(folder), *map(str, words)], out, offline=False)
    return [next((out / "aiperf").rglob(f"profile_export_aiperf.{kind}")) for kind in ("json", "csv")]


@pytest.mark.parametrize("tool", [bench_serving, guidellm, aiperf], ids=lambda tool: tool.__name__)
def test_what_a_tool_writes_is_what_the_server_did(tool, peers: ModuleType, url: str, tmp_path: Path) -> None:
    folder = Path(FOLDER or "").absolute()
    peers.bench_serving(folder)  # the tokenizer is written with its environment
    before = sent(url)
    files = tool(peers, folder, url, peers.tokenizer(folder), tmp_path)
    count = sent(url) - before
    assert count >= REQUESTS * TOKENS
    for file in files:
        found = import_file(file)
        (run,) = found.runs
        seen = run.figures
        assert found.source == tool.__name__
        if file.suffix != ".csv":  # AIPerf's table does not tell its clients
            assert run.level == CLIENTS
        assert (seen.completed, seen.errors, seen.tokens) == (REQUESTS, {}, REQUESTS * TOKENS)
        # units, on a machine that may be busy: never less than the law, and not a thousand times more
        assert seen.ttft
        assert seen.tpot
        assert seen.e2e
        for shown, law in ((seen.ttft, PREFILL), (seen.tpot, 1 / RATE), (seen.e2e, PREFILL + TOKENS / RATE)):
            assert 0.9 * law <= shown.p50 / 1000 < 10 * law
            assert shown.p50 <= shown.p90 <= shown.p99
        least = REQUESTS / CLIENTS * (PREFILL + TOKENS / RATE)
        assert 0.9 * least <= seen.seconds < 10 * least
        assert seen.tokens / seen.seconds / 1.5 <= seen.throughput <= CLIENTS * RATE

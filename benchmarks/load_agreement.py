"""Does ``stackb bench`` measure what SGLang's ``bench_serving`` measures? Both against one server, under one load.

The server (tests/fixtures/llm) follows a stated law: every prompt has a prefill and pauses of its own, drawn
log-normally, so that percentiles differ from each other and from the mean. Both clients send the same prompts, ask for
the same number of tokens, and keep the same number of requests in flight. What is compared has the same definition in
both: output tokens per second from the first request to the end of the last, TTFT and end to end from before the
connection is opened, TPOT without the first token, ITL between events with text. Every share of the difference above
2 % fails, and so does any count of tokens that is not the server's own, exactly.

``bench_serving`` runs twice, once on each side of ours: what its own two runs differ by is what no client could do
better. It opens a connection for each request and keeps none, so ``--connections fresh`` is the like of it; ``--kept``
adds what keeping them (the default) changes.

    python benchmarks/load_agreement.py PEERS --output agreement.jsonl   # benchmarks/peers.py PEERS bench_serving first
    python benchmarks/load_agreement.py --summary agreement.jsonl        # of all runs that the file holds
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import peers

SERVER = Path(__file__).parents[1] / "tests" / "fixtures" / "llm" / "server.py"
LAW = ("--rate", "20", "--prefill", "0.5", "--spread", "0.3")
LIMIT = 0.02
EXACT = ("output tokens", "server", "requests")
_STATS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e"}


@contextmanager
def server(*law: str) -> Iterator[str]:
    """Run the stand-in for the time of the context; gives its URL."""
    child = subprocess.Popen([sys.executable, str(SERVER), *law], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()


def counted(url: str) -> int:
    """Output tokens that the server has sent so far, by its own book."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("sglang:generation_tokens_total"))


def prompts(count: int, file: Path) -> None:
    """Write prompts that both clients read: theirs wants the second turn, too."""
    chance = random.Random(6)
    with file.open("w") as out:
        for number in range(count):
            text = " ".join(f"w{chance.randrange(1000)}" for _ in range(16))
            turns = [{"role": "user", "content": f"w{number} {text}"}, {"role": "assistant", "content": "w1 w2"}]
            out.write(json.dumps({"conversations": turns}) + "\n")


def bench_serving(options: argparse.Namespace, url: str, file: Path, scratch: Path) -> dict[str, float]:
    """Figures of SGLang's client, by its own names."""
    result = scratch / "bench_serving.jsonl"
    words = [*peers.bench_serving(options.peers), "--backend", "sglang-oai", "--base-url", url]
    words += ["--dataset-name", "custom", "--dataset-path", str(file), "--sharegpt-output-len", str(options.tokens)]
    words += ["--num-prompts", str(options.clients * options.requests), "--max-concurrency", str(options.clients)]
    words += ["--model", str(peers.tokenizer(options.peers)), "--served-model-name", "law"]
    words += ["--warmup-requests", str(options.clients), "--output-file", str(result), "--disable-tqdm"]
    before = counted(url)
    peers.cpu_seconds(words, scratch)
    told = json.loads(result.read_text())
    result.unlink()  # they append
    warm = options.clients * min(options.tokens, 32)
    found = {"output tokens": told["total_output_tokens"], "server": counted(url) - before - warm}
    found |= {"requests": told["completed"], "output tok/s": told["output_throughput"]}
    return found | {
        f"{ours} {stat} ms": told[f"{name}_{theirs}_ms"]
        for theirs, ours in _LATENCIES.items()
        for name, stat in _STATS.items()
    }


def stackb(options: argparse.Namespace, url: str, file: Path, scratch: Path, connections: str) -> dict[str, float]:
    """The same figures of ``stackb bench``."""
    result = scratch / "stackb.json"
    words = [sys.executable, "-m", "stack_builder", "bench", url, "--no-log", "--output", str(result)]
    words += ["--prompts", str(file), "--tokens", str(options.tokens), "--connections", connections]
    words += ["--concurrency", str(options.clients), "--requests", str(options.requests)]
    peers.cpu_seconds(words, scratch)
    measured = json.loads(result.read_text())["runs"][0]
    told = measured["figures"]
    found = {"output tokens": told["tokens"], "server": measured["server_tokens"]}
    found |= {"requests": told["completed"], "output tok/s": told["throughput"]}
    return found | {f"{name} {stat} ms": told[name][stat] for name in _LATENCIES.values() for stat in _STATS.values()}


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run every client once; gives its figures under its name."""
    with tempfile.TemporaryDirectory() as folder, server(*LAW) as url:
        scratch = Path(folder)
        file = scratch / "prompts.jsonl"
        prompts(options.clients * options.requests, file)
        found = {"bench_serving": bench_serving(options, url, file, scratch)}
        found["stackb fresh"] = stackb(options, url, file, scratch, "fresh")
        if options.kept:
            found["stackb kept"] = stackb(options, url, file, scratch, "kept")
        return found | {"bench_serving again": bench_serving(options, url, file, scratch)}


def compare(run: dict[str, dict[str, float]]) -> int:
    """Print one run as a table; gives the number of figures that do not agree."""
    theirs, *others = run
    print(f"{'':<16}{theirs:>22}" + "".join(f"{name:>22}{'':9}" for name in others))
    wrong = 0
    for name, value in run[theirs].items():
        cells = "".join(f"{run[other][name]:22.3f}{run[other][name] / value - 1:9.2%}" for other in others)
        bad = differs(run, name, "stackb fresh")
        wrong += bad
        print(f"{name:<16}{value:22.3f}{cells}{'  differs' if bad else ''}")
    for name, client in run.items():
        if client["output tokens"] != client["server"]:
            wrong += 1
            print(f"{name}: {client['output tokens']:g} tokens counted, {client['server']:g} sent")
    return wrong


def differs(run: dict[str, dict[str, float]], figure: str, client: str) -> bool:
    """Whether a client's figure is not that of the first run of bench_serving."""
    share = run[client][figure] / run["bench_serving"][figure] - 1
    return share != 0 if figure in EXACT else abs(share) > LIMIT


def summary(runs: list[dict[str, dict[str, float]]]) -> list[str]:
    """For each figure: how far ours, and their own second run, were from their first; how often beyond the limit."""
    clients = ("stackb fresh", "bench_serving again")
    lines = [f"{len(runs)} runs{'':<10}" + "".join(f"{name:>24}{'beyond 2 %':>12}" for name in clients)]
    for figure in runs[0]["bench_serving"]:
        cells = ""
        for client in clients:
            shares = sorted(abs(run[client][figure] / run["bench_serving"][figure] - 1) for run in runs)
            beyond = sum(differs(run, figure, client) for run in runs)
            cells += f"{shares[len(shares) // 2]:13.2%}{shares[-1]:11.2%}{beyond:12}"
        lines.append(f"{figure:<16}{cells}")
    lines.append("(median and largest difference from bench_serving's first run)")
    for client in clients:
        clean = sum(not any(differs(run, figure, client) for figure in run[client]) for run in runs)
        lines.append(f"{client}: every figure within 2 % in {clean} of {len(runs)} runs")
    return lines


def main() -> None:
    """Measure, print the table, and fail where it does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path, nargs="?", help="folder of benchmarks/peers.py")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=12, help="of each client")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--kept", action="store_true", help="run ours with kept connections, too")
    parser.add_argument("--output", type=Path, help="append the figures as a JSON line")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="sum up what --output wrote, and run nothing")
    options = parser.parse_args()
    if options.summary:
        print("\n".join(summary([json.loads(line) for line in options.summary.read_text().splitlines()])))
        return
    if options.peers is None:
        parser.error("name the folder of benchmarks/peers.py")
    options.peers = options.peers.absolute()
    run = measured(options)
    if options.output:
        with options.output.open("a") as out:
            out.write(json.dumps(run) + "\n")
    wrong = compare(run)
    print("every figure agrees" if not wrong else f"{wrong} figures disagree")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

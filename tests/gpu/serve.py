"""``stackb probe`` and ``stackb serve`` on real GPUs: what works, and nine ways to break it.

    python serve.py VENV MODELS OUT

VENV is made by prepare.sh, MODELS holds tiny/{target,draft} and the variants of models.py. Writes one JSON file with
every call, its exit code and its report, and the trimmed log of each server; asserts nothing, so that a run is
recorded whole. tests/real/test_gpu_record.py holds the record to account.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VENV, MODELS, OUT = (Path(argument) for argument in sys.argv[1:4])
STACK = "cu130-sglang-0.5.17"
PYTHON = VENV / "bin" / "python3"
STATE = Path("/tmp/stackb-state")
TARGET, DRAFT = MODELS / "tiny" / "target", MODELS / "tiny" / "draft"
EAGLE3 = ("--spec", "eagle3", "--model", TARGET, "--draft", DRAFT)
# what several small servers on one Hopper GPU need beside the stack's own arguments, which are for SM120
SHARED = {
    "--attention-backend": "fa3",
    "--mem-fraction-static": "0.2",
    "--max-total-tokens": "65536",
    "--context-length": "4096",
    "--cuda-graph-max-bs-decode": "64",
}
# One server over two GPUs, with neither SGLang's own all-reduce nor its gather of the logits through multicast memory
# (float32 logits go through NCCL): the host of the recorded run does not allow NVLink multicast.
TWO_RANKS = {**SHARED, "--tp": "2", "--disable-custom-all-reduce": "", "--enable-fp32-lm-head": ""}
RECORD: dict[str, object] = {}
LONG = 3900  # tokens of an answer that is under way when its server is asked to stop
LOG_LINES = 400  # kept of each server's log
SETTLED = 20.0  # seconds in which what a stop left would have to go


def command(*arguments: object) -> tuple[list[str], dict[str, str]]:
    """One call of the command line, and its environment."""
    env = {**os.environ, "STACKB_STATE_DIR": str(STATE), "STACKB_CACHE_DIR": "/tmp/stackb-cache", "COLUMNS": "110"}
    return [str(PYTHON), "-m", "stack_builder", *map(str, arguments)], env


def stackb(*arguments: object, limit: float = 280) -> dict[str, object]:
    """Run one call and record how it ended."""
    words, env = command(*arguments)
    started = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"call": words[3:], "exit": None, "seconds": limit}
    return ended(words, done.returncode, time.monotonic() - started, done.stdout, done.stderr)


def ended(words: list[str], code: int, seconds: float, output: str, errors: str) -> dict[str, object]:
    """What is recorded of a call; of several reports on stdout the last."""
    report: object = output[-4000:]
    decoder, at = json.JSONDecoder(), 0
    while output.startswith("{", at):
        report, at = decoder.raw_decode(output, at)
        at += len(output[at:]) - len(output[at:].lstrip())
    return {"call": words[3:], "exit": code, "seconds": round(seconds, 1), "report": report, "stderr": errors[-3000:]}


def launch(port: int, *arguments: object, options: dict[str, str]) -> tuple[object, ...]:
    """The words of ``stackb serve`` on a port with SGLang's own options."""
    place = ("serve", STACK, "--in", "local", "--venv", VENV, "--port", port, "--format", "json")
    return (*place, *arguments, "--", *(word for pair in options.items() for word in pair if word))


def keep_log(port: int) -> None:
    """Keep the end of a server's log beside the record."""
    log = STATE / "servers" / f"{port}.log"
    if log.exists():
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        (OUT / f"{port}.log").write_text("".join(lines[-LOG_LINES:]))


def serve(port: int, *arguments: object, extra: dict[str, str] | None = None) -> dict[str, object]:
    """Start a server detached."""
    result = stackb(*launch(port, "--detach", *arguments, options={**SHARED, **(extra or {})}))
    keep_log(port)
    return result


def lose_a_rank(port: int) -> dict[str, object]:
    """Watch over a server of two ranks, and kill the second once it serves."""
    words, env = command(*launch(port, *EAGLE3, options=TWO_RANKS))
    started = time.monotonic()
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stderr is not None
    first = next((line for line in child.stderr if "fired up" in line), "")  # what it watches is shown once it is ready
    ranks = sorted(pid for pid, row in processes_of(port) if "scheduler_TP1" in row) if first else []
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    try:
        output, errors = child.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=90)
    keep_log(port)
    return {**ended(words, child.returncode, time.monotonic() - started, output, errors), "killed": len(ranks)}


def chat(port: int, tokens: int = 64) -> dict[str, object]:
    """One streamed chat request: pieces, and the server's own count of tokens."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Count to ten."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    pieces, usage, finished = 0, None, False
    with urllib.request.urlopen(request, timeout=120) as answer:
        for raw in answer:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                finished = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                pieces += sum(bool(choice["delta"].get("content")) for choice in event["choices"])
                usage = event.get("usage") or usage
    return {"pieces": pieces, "usage": usage, "finished": finished}


def gpu_memory_mib() -> list[int]:
    """Memory in use on each GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


def processes() -> list[str]:
    """Command lines of SGLang processes."""
    rows = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [row[:120] for row in rows if "sglang" in row and "serve.py" not in row and "stack_builder" not in row]


def processes_of(port: int) -> list[tuple[int, str]]:
    """Process ids and command lines of a server."""
    leader = json.loads((STATE / "servers" / f"{port}.json").read_text())["pid"]
    rows = subprocess.run(["ps", "-ewwo", "pid,sess,args"], capture_output=True, text=True, check=True).stdout
    found = (row.split(None, 2) for row in rows.splitlines()[1:])
    return [(int(pid), args) for pid, session, args in found if session == str(leader)]


def left(before: list[int]) -> dict[str, object]:
    """What the servers that were stopped hold: at once, and how long it took until the GPUs' memory was free."""
    started = time.monotonic()
    at_once = [now - then for now, then in zip(gpu_memory_mib(), before, strict=True)]
    in_use = at_once
    while any(in_use) and time.monotonic() - started < SETTLED:
        time.sleep(0.5)
        in_use = [now - then for now, then in zip(gpu_memory_mib(), before, strict=True)]
    seconds = round(time.monotonic() - started, 1)
    return {"processes": processes(), "MiB at once": at_once, "MiB": in_use, "seconds": seconds}


def good_servers() -> None:
    """Baseline, a pair with acceptance, one without, and a flag that does nothing: all at once."""
    starts = {
        "none": (31001, ("--spec", "none", "--model", TARGET), {}),
        "eagle3": (31002, EAGLE3, {}),
        "random draft": (31003, ("--spec", "eagle3", "--model", TARGET, "--draft", MODELS / "draft-random"), {}),
        "fusion flag": (31004, EAGLE3, {"--enable-flashinfer-allreduce-fusion": ""}),
    }
    with ThreadPoolExecutor(len(starts)) as pool:
        started = {name: pool.submit(serve, port, *words, extra=extra) for name, (port, words, extra) in starts.items()}
        for name, future in started.items():
            RECORD[name] = future.result()
    for name in ("none", "eagle3"):
        answer(name, starts[name][0])
    RECORD["status"] = stackb("serve", "--status")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(answer, "none, asked to stop", starts["none"][0], LONG)
        time.sleep(1)
        for name, (port, _, _) in starts.items():
            RECORD[f"{name}: stop"] = stackb("serve", "--stop", "--port", port)


def answer(name: str, port: int, tokens: int = 64) -> None:
    """Record a chat with a server."""
    try:
        RECORD[f"{name}: chat"] = chat(port, tokens)
    except (OSError, http.client.HTTPException) as error:
        RECORD[f"{name}: chat"] = {"error": str(error)}


def two_ranks() -> None:
    """One server over two GPUs from start to stop; beside it one that loses a rank while it serves."""
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(lose_a_rank, 31006)
        RECORD["two ranks"] = stackb(*launch(31005, "--detach", *EAGLE3, options=TWO_RANKS))
        answer("two ranks", 31005)
        RECORD["two ranks: processes"] = [row[:120] for _, row in processes_of(31005) if "sglang" in row]
        RECORD["two ranks: stop"] = stackb("serve", "--stop", "--port", "31005")
        keep_log(31005)
        RECORD["a rank lost"] = lost.result()


def broken_servers() -> None:
    """Each stopped before the start or explained after the crash; those that crash do so side by side."""
    model = ("--spec", "eagle3", "--model")
    wrong = (*model, TARGET, "--draft", MODELS / "draft-wrong-vocabulary")
    memory = {"--mem-fraction-static": "0.9995", "--max-total-tokens": "40000000"}
    despite = ("--despite", "SGL045", "--despite", "SGL047")
    with ThreadPoolExecutor(2) as pool:
        crashes = {
            "memory fraction too high": pool.submit(serve, 31015, *EAGLE3, extra=memory),
            "wrong vocabulary, insisted on": pool.submit(serve, 31016, *wrong, *despite),
        }
        stopped_before_the_start(model, wrong)
        for name, future in crashes.items():
            RECORD[name] = future.result()


def stopped_before_the_start(model: tuple[object, ...], wrong: tuple[object, ...]) -> None:
    """What preflight refuses, and what it says when it is asked alone."""
    RECORD["check"] = serve(31010, *EAGLE3, "--check")
    ranks = str(2 * len(gpu_memory_mib()))
    RECORD["check: too many ranks"] = serve(31010, *EAGLE3, "--check", extra={"--tp": ranks})
    RECORD["missing hook"] = serve(31011, *model, MODELS / "target-without-hooks", "--draft", DRAFT)
    RECORD["wrong vocabulary"] = serve(31012, *wrong)
    RECORD["unknown option"] = serve(31013, *EAGLE3, extra={"--no-such-option": "1"})
    with socket.socket() as other:
        other.bind(("127.0.0.1", 31014))
        other.listen()
        RECORD["occupied port"] = serve(31014, *EAGLE3)


def main() -> None:
    """Record everything."""
    OUT.mkdir(parents=True, exist_ok=True)
    before = gpu_memory_mib()
    steps = (
        ("probe", lambda: RECORD.update(probe=stackb("probe", f"venv:{VENV}", "--gpu", "sm_90", "--format", "json"))),
        ("doctor", lambda: RECORD.update(doctor=stackb("doctor", f"venv:{VENV}", "--format", "json"))),
        ("good servers", good_servers),
        ("left after the good", lambda: RECORD.update({"left: good servers": left(before)})),
        ("two ranks", two_ranks),
        ("left after two ranks", lambda: RECORD.update({"left: two ranks": left(before)})),
        ("broken servers", broken_servers),
        ("left", lambda: RECORD.update({"left: broken servers": left(before)})),
    )
    for name, step in steps:
        if "two ranks" in name and len(before) < 2:
            continue
        started = time.monotonic()
        try:
            step()
        except Exception as error:  # record the rest all the same
            RECORD[f"{name}: error"] = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{name}: {time.monotonic() - started:.0f} s\n")
        text = json.dumps(RECORD, indent=1, default=str)
        (OUT / "serve.json").write_text(text.replace(f"{Path.cwd()}/", ""))  # where the checkout lay tells nobody
    for name, result in RECORD.items():
        if isinstance(result, dict) and "exit" in result:
            sys.stderr.write(f"{result['exit']!s:>5}  {result['seconds']:>6} s  {name}\n")


main()

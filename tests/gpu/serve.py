"""``stackb probe`` and ``stackb serve`` on a real GPU: what works, and eight ways to break it.

    python serve.py VENV MODELS OUT

VENV is made by prepare.sh, MODELS holds tiny/{target,draft} and the variants of models.py. Writes one JSON file with
every call, its exit code and its report, and the trimmed log of each server; asserts nothing, so that a run is
recorded whole. tests/real/test_gpu_record.py holds the record to account.
"""

from __future__ import annotations

import json
import os
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
RECORD: dict[str, object] = {}
LOG_LINES = 400  # kept of each server's log


def stackb(*arguments: object, limit: float = 280) -> dict[str, object]:
    """Run one call of the command line and record how it ended."""
    words = [str(argument) for argument in arguments]
    env = {**os.environ, "STACKB_STATE_DIR": str(STATE), "STACKB_CACHE_DIR": "/tmp/stackb-cache", "COLUMNS": "110"}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [PYTHON, "-m", "stack_builder", *words], capture_output=True, text=True, env=env, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"call": words, "exit": None, "seconds": limit}
    seconds = round(time.monotonic() - started, 1)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = done.stdout[-4000:]
    return {"call": words, "exit": done.returncode, "seconds": seconds, "report": report, "stderr": done.stderr[-3000:]}


def serve(port: int, *arguments: object, extra: dict[str, str] | None = None) -> dict[str, object]:
    """Start a server detached; its log is kept beside the record."""
    place = ("serve", STACK, "--in", "local", "--venv", VENV, "--port", port, "--detach", "--format", "json")
    words = [word for pair in {**SHARED, **(extra or {})}.items() for word in pair if word]
    result = stackb(*place, *arguments, "--", *words)
    log = STATE / "servers" / f"{port}.log"
    if log.exists():
        (OUT / f"{port}.log").write_text(
            "".join(log.read_text(errors="replace").splitlines(keepends=True)[-LOG_LINES:])
        )
    return result


def chat(port: int) -> dict[str, object]:
    """One streamed chat request: pieces, text and the server's own count of tokens."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Count to ten."}],
        "max_tokens": 64,
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


def gpu_memory_mib() -> int:
    """Memory in use on the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def processes() -> list[str]:
    """Command lines of SGLang processes."""
    rows = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [row[:120] for row in rows if "sglang" in row and "serve.py" not in row and "stack_builder" not in row]


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
        port = starts[name][0]
        try:
            RECORD[f"{name}: chat"] = chat(port)
        except OSError as error:
            RECORD[f"{name}: chat"] = {"error": str(error)}
    RECORD["status"] = stackb("serve", "--status")
    for name, (port, _, _) in starts.items():
        RECORD[f"{name}: stop"] = stackb("serve", "--stop", "--port", port)


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
    RECORD["check: two ranks"] = serve(31010, *EAGLE3, "--check", extra={"--tp": "2"})
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
        (
            "left after the good",
            lambda: RECORD.update(left={"processes": processes(), "MiB": gpu_memory_mib() - before}),
        ),
        ("broken servers", broken_servers),
        ("left", lambda: RECORD.update(left_at_the_end={"processes": processes(), "MiB": gpu_memory_mib() - before})),
    )
    for name, step in steps:
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

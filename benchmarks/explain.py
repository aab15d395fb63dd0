"""How long ``stackb explain`` takes for a large log, and how much memory.

    python benchmarks/explain.py [--megabytes 200] [--kind NAME …]

The logs are made here, from a fixed seed, one kind at a time, each with one real error some way before its end:

* ``server``: what a busy SGLang server writes, lines that differ in their numbers;
* ``different``: no two lines alike, made of 5,000 words;
* ``random``: no two lines alike, made of letters and signs;
* ``exceptions``: nothing but tracebacks of unknown exceptions, all different;
* ``suspicious``: every line holds a string of a known error text, and none is one;
* ``chinese``: no two lines alike, with words that are not ASCII;
* ``bytes``: no text at all.

Prints wall and processor seconds and peak memory of the whole command, and the cause that it names first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ERROR = "ImportError: libnvrtc.so.13: cannot open shared object file: No such file or directory\n"
BATCH = (
    "[2026-11-29 {h:02}:{m:02}:{s:02} TP{r}] Decode batch, #running-req: {a}, #token: {b}, token usage: 0.{c}, "
    "accept len: 2.{d}, gen throughput (token/s): {e}.{c}, #queue-req: {d}\n"
)
ACCESS = '[2026-11-29 {h:02}:{m:02}:{s:02}] INFO:     10.0.{r}.{d}:{b} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
SIGNS = string.ascii_letters + string.digits + "     _-:,.()[]/"


def server(source: random.Random) -> str:
    """A line of a server."""
    numbers = {
        "h": source.randrange(24),
        "m": source.randrange(60),
        "s": source.randrange(60),
        "r": source.randrange(8),
    }
    numbers |= {name: source.randrange(10**size) for name, size in zip("abcde", (2, 6, 2, 1, 4), strict=True)}
    return source.choice((BATCH, BATCH, ACCESS)).format(**numbers)


def worded(source: random.Random) -> Callable[[random.Random], str]:
    """Lines of words."""
    words = ["".join(source.choices(string.ascii_lowercase, k=source.randint(2, 11))) for _ in range(5000)]
    return lambda source: f"[{source.random():.9f}] {' '.join(source.choices(words, k=source.randint(8, 20)))}\n"


def letters(source: random.Random) -> str:
    """A line of anything."""
    return "".join(source.choices(SIGNS, k=source.randint(60, 160))) + "\n"


def exception(source: random.Random) -> str:
    """An exception of which nothing is known."""
    name = "".join(source.choices(string.ascii_letters, k=12))
    frames = "".join(f'  File "/srv/{name}/{at}.py", line {at}, in f{at}\n    {name[at:]}()\n' for at in range(4))
    return f"Traceback (most recent call last):\n{frames}{name.title()}Error: {letters(source)}"


def suspicious(source: random.Random) -> str:
    """A line that is nearly an error."""
    nearly = source.choice(("CUDA driver", "undefined symbol", "No module", "NCCL WARN", "cannot open shared"))
    return f"{letters(source)[:40]} {nearly}{letters(source)}"


def chinese(source: random.Random) -> str:
    """A line that mixes Chinese and English."""
    return letters(source)[:60] + "".join(chr(source.randrange(0x4E00, 0x9FA6)) for _ in range(20)) + letters(source)


def noise(source: random.Random) -> str:
    """Random bytes, as far as :func:`main` writes them."""
    return source.randbytes(4096).decode("utf-8", "surrogateescape")


def log(kind: str, size: int) -> Iterator[str]:
    """The lines of a log."""
    source = random.Random(kind)
    makers: dict[str, Callable[[random.Random], str]] = {
        "server": server,
        "different": worded(source),
        "random": letters,
        "exceptions": exception,
        "suspicious": suspicious,
        "chinese": chinese,
        "bytes": noise,
    }
    written = 0
    told = False
    while written < size:
        line = makers[kind](source)
        if not told and written > size - (1 << 20):
            told, line = True, f"\n{ERROR}" if kind == "bytes" else ERROR
        written += len(line.encode("utf-8", "surrogateescape"))
        yield line


def main() -> None:
    """Measure."""
    kinds = ("server", "different", "random", "exceptions", "suspicious", "chinese", "bytes")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--kind", action="append", choices=kinds)
    parser.add_argument("--folder", type=Path, help="where the logs are made, and kept for the next run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for kind in options.kind or kinds:
            path = folder / f"{kind}-{options.megabytes}.log"
            if not path.exists():
                with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                    file.writelines(log(kind, options.megabytes * 1_000_000))
            report(kind, path)
            if options.folder is None:
                path.unlink()


def report(kind: str, path: Path) -> None:
    """Explain one log, in a process of its own."""
    with tempfile.TemporaryFile() as out:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.execv(sys.executable, [sys.executable, "-m", "stack_builder", "explain", str(path), "--format", "json"])
        _, _, usage = os.wait4(child, 0)
        wall = time.monotonic() - started
        out.seek(0)
        found = json.load(out)["findings"][:1]
    cause = found[0]["cause"] if found else None
    seconds = usage.ru_utime + usage.ru_stime
    size = path.stat().st_size / 1e6
    print(f"{kind:11} {size:5.0f} MB {wall:6.2f} s wall {seconds:6.2f} s CPU {usage.ru_maxrss / 1000:5.0f} MB  {cause}")


if __name__ == "__main__":
    main()

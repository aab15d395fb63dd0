"""``stackb lock`` against a bare ``uv pip compile --generate-hashes`` of the same request, turn by turn.

Both keep the versions of the lock that is there and ask the same index. ``stackb lock`` does more: it picks one file
per package, reads the facts of every wheel (from the cache here; fill it with one run first), scans all wheels for
collisions and applies every rule. Aim: within 1.3 times.

    python benchmarks/lock.py [STACK] [ROUNDS]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from uv import find_uv_bin

from stack_builder.resolve.target import Target
from stack_builder.stack import spec


def seconds(command: list[str], cwd: Path) -> float:
    """Run a command and give its wall time."""
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Take turns, then print every round and the medians."""
    folder = spec.find(sys.argv[1] if len(sys.argv) > 1 else None)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    stack = spec.load(folder)
    target = Target.of(stack)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "stack.in").write_text("".join(f"{name}{version}\n" for name, version in stack.requires.items()))
        shutil.copy(folder / "requirements.txt", place / "out.txt")
        platform = f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}"
        uv = [
            *(find_uv_bin(), "pip", "compile", "stack.in", "--output-file", "out.txt", "--generate-hashes", "--quiet"),
            *("--python", sys.executable, "--python-version", target.python, "--python-platform", platform),
            *("--only-binary", ":all:"),
        ]
        if stack.stack.exclude_newer is not None:
            uv += ["--exclude-newer", f"{stack.stack.exclude_newer + timedelta(days=1)}T00:00:00Z"]
        stackb = [sys.executable, "-m", "stack_builder", "lock", str(folder), "--dry-run"]
        seconds(stackb, place)
        times = [(seconds(uv, place), seconds(stackb, place)) for _ in range(rounds)]
    for bare, ours in times:
        print(f"uv {bare:6.2f} s   stackb {ours:6.2f} s   {ours / bare:5.2f}")
    bare, ours = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"median: uv {bare:.2f} s, stackb {ours:.2f} s, ratio {ours / bare:.2f}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

"""Reading a release of SGLang, side by side with what one would do without stackb.

    python benchmarks/sglang_read.py sglang-VERSION-….whl [--python EXE] [--rounds 3]

Contract and options from a cold cache and from a warm one, each in a process of its own as a user starts it; and from
a warm one without the start of that process, as ``serve`` and ``diff`` meet it. Against:

* ``ast``: every Python file of the wheel parsed once with the standard library, and nothing concluded from it;
* ``launch_server --help`` in an environment with this SGLang installed (``--python``), which knows the options only.

Wall time, the best of the rounds, and as a ratio to ``stackb … cold`` of the same row's subject; rounds alternate, so
that what else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

PARSE_ALL = """
import ast, sys, warnings, zipfile
warnings.simplefilter("ignore")
wheel = zipfile.ZipFile(sys.argv[1])
for name in wheel.namelist():
    if name.endswith(".py"):
        ast.parse(wheel.read(name))
"""

READ = """
import sys, time
from pathlib import Path
from stack_builder.sglang import release, source
from stack_builder.sglang.contract import contract

if __name__ == "__main__":
    read = {"contract": contract.read, "options": release.read}[sys.argv[1]]
    started = time.monotonic()
    read(source.from_wheel(Path(sys.argv[2])))
    print(time.monotonic() - started)
"""


def seconds(argv: list[str], environment: dict[str, str]) -> float:
    """Run a program to its end and give its wall time.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    started = time.monotonic()
    subprocess.run(argv, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


def inside(subject: str, folder: Path, wheel: Path, cache: Path) -> float:
    """What reading from a warm cache takes in a process that runs already."""
    script, environment = folder / "read.py", {**os.environ, "XDG_CACHE_HOME": str(cache)}
    script.write_text(READ)
    argv = [sys.executable, str(script), subject, str(wheel)]
    for _ in range(2):
        said = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(said)


def ways(folder: Path, wheel: Path, python: Path | None) -> dict[str, Callable[[Path], float]]:
    """What is measured: a function of an empty cache folder for each."""
    stackb = [sys.executable, "-m", "stack_builder", "sglang"]

    def read(subject: str, *, warm: bool) -> Callable[[Path], float]:
        def run(cache: Path) -> float:
            argv, environment = [*stackb, subject, "--target", f"wheels:{folder}"], {"XDG_CACHE_HOME": str(cache)}
            if warm:
                seconds(argv, environment)
            return seconds(argv, environment)

        return run

    found = {
        f"{subject}, {state}": read(subject, warm=state == "cached")
        for subject in ("contract", "options")
        for state in ("cold", "cached")
    }
    for subject in ("contract", "options"):
        found[f"{subject}, cached, reading"] = partial(inside, subject, folder, wheel)
    found["ast over all files"] = lambda _: seconds([sys.executable, "-c", PARSE_ALL, str(wheel)], {})
    if python is not None:
        found["launch_server --help"] = lambda _: seconds([str(python), "-m", "sglang.launch_server", "--help"], {})
    found["stackb --version"] = lambda _: seconds([sys.executable, "-m", "stack_builder", "--version"], {})
    return found


def main() -> None:
    """Print one row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "wheel")
        folder.mkdir()
        (folder / options.wheel.name).symlink_to(options.wheel.resolve())
        measured = ways(folder, options.wheel, options.python)
        best = dict.fromkeys(measured, float("inf"))
        for number in range(options.rounds):
            for name, way in measured.items():
                best[name] = min(best[name], way(Path(scratch, f"cache-{number}-{name}")))
    print(f"{options.wheel.name}, best of {options.rounds}, load {os.getloadavg()[0]:.1f}")
    print(f"{'':26}  wall s  of contract, cold  of options, cold")
    for name, wall in best.items():
        ratios = (wall / best[f"{subject}, cold"] for subject in ("contract", "options"))
        print(f"{name:26}  {wall:6.2f}  {'  '.join(f'{ratio:16.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()

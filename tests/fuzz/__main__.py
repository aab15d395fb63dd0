"""``python -m tests.fuzz SECONDS [TARGET…]``: one line a target; ends with 1 at a finding."""

from __future__ import annotations

import sys

from tests.fuzz.runner import run
from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> int:
    """Run the named targets, all without any, one after the other."""
    seconds, names = float(arguments[0]), arguments[1:] or list(TARGETS)
    found = 0
    for name in names:
        outcome = run(name, TARGETS[name], seconds)
        said = outcome.finding or "no finding"
        print(f"{name}: {outcome.inputs} inputs in {outcome.seconds:.0f} s: {said}", flush=True)  # noqa: T201
        found |= outcome.finding is not None
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

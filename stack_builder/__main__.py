"""Run the command line: ``stackb`` and ``python -m stack_builder``."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code.

    Imports take a tenth of a second, and Ctrl-C may come at any time: nothing heavy is imported above.
    """
    # Calls make many objects and hardly a cycle: looking for cycles this rarely takes a twentieth off every start, and
    # a tenth off a check of an environment.
    gc.set_threshold(50_000)
    try:
        from stack_builder.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        os.write(2, b"stackb: interrupted\n")
        os._exit(130)


if __name__ == "__main__":
    main()

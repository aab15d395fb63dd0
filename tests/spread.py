"""How ``pytest -n 2`` deals the tests out: file by file, and to one process what shares something costly.

The ``xdist_group`` mark does the same, but changes the names under which tests are reported and run again.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

_RELEASE = re.compile(r"\d+\.\d+\.\d+")

TOGETHER = {
    "the small base, and unfinished images in the engine": (
        "tests/real/test_image.py",
        "tests/real/test_readme.py",
        "tests/real/test_winner_image.py",
        "tests/real/test_engine.py",  # a build removes those that another has left
    ),
}
"""Files that one process gets: by what they share there."""
APART = ("tests/real/test_sglang_releases.py",)
"""Files whose cases share something only with those of the same parameter, the release."""
EXHAUSTIVE = tuple(f"tests/hardening/test_{name}.py" for name in ("company", "faults", "kills"))
"""Files each case of which takes minutes where every fault is tried."""


class Spread(LoadScopeScheduling):
    """A scheduler whose units are files, in the order of collection: the slow ones, on real material, come early."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if path in EXHAUSTIVE and self.config.getoption("--exhaustive"):
            return nodeid
        if path in APART:
            release = _RELEASE.search(test)
            return f"{path} {release[0] if release else ''}"
        return next((shared for shared, paths in TOGETHER.items() if path in paths), path)

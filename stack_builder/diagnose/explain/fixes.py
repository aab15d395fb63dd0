"""Which fix of a pattern holds: that of a serving stack, or the one for any program.

A port in use, a full disk or a missing module is the same text wherever it comes from. What SGLang's own options or
caches can do about it is said only where the text shows that it is about a serving stack.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from packaging.utils import canonicalize_name

from stack_builder import resources
from stack_builder.diagnose.explain.rank import Match

SERVING = "serving-stack"
"""The context that a text shows when it is about SGLang, torch, CUDA or what belongs to them."""

# modules that are called otherwise than the distribution that brings them
_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "google.protobuf": "protobuf",
    "pil": "pillow",
    "sgl_kernel": "sglang-kernel",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
_HELD = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)


def fixes(match: Match, shown: Collection[str]) -> tuple[str, ...]:
    """Give what to do about a match in a text that shows these contexts."""
    pattern = match.pattern
    named = None if pattern.pinned is None else match.groups.get(pattern.pinned, "")
    ours = SERVING in shown if named is None else is_pinned(named)
    return pattern.fix if ours or not pattern.fix_elsewhere else pattern.fix_elsewhere


def is_pinned(name: str) -> bool:
    """Whether a stack that ships with the tool locks this distribution, or the one that brings this module."""
    bare = re.split(r"[\s<>=!~\[;]", name.strip(".'\"`"), maxsplit=1)[0]
    top = bare.partition(".")[0].lower()
    return canonicalize_name(_DISTRIBUTIONS.get(bare, _DISTRIBUTIONS.get(top, top))) in _pinned()


@cache
def _pinned() -> frozenset[str]:
    names = {"sglang"}
    for path in resources.lockfiles().glob("*/requirements.txt"):
        names.update(map(canonicalize_name, _HELD.findall(path.read_text(encoding="utf-8"))))
    return frozenset(names)

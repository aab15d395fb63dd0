"""Which ``glibc-hwcaps`` folders a processor qualifies for."""

from __future__ import annotations

import re

# x86-64 psABI, "Micro-architecture levels", by the names that Linux gives the features in /proc/cpuinfo.
_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("x86-64-v4", "avx512bw avx512cd avx512dq avx512f avx512vl"),
)


def hwcaps_levels(cpuinfo: str) -> tuple[str, ...]:
    """The levels of the processor that ``/proc/cpuinfo`` describes, best first; none on other architectures.

    Args:
        cpuinfo: the file's text.
    """
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    found: list[str] = []
    for level, needed in _LEVELS:
        if not flags.issuperset(needed.split()):
            break
        found.insert(0, level)
    return tuple(found)

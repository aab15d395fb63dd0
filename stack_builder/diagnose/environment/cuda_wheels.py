"""Which wheel on PyPI ships which library of the CUDA toolkit (``checks/cuda_wheels.toml``)."""

from __future__ import annotations

from functools import cache

from stack_builder import resources


@cache
def tables() -> dict[int, dict[str, str]]:
    """Soname to distribution, per CUDA major."""
    return {int(major): table for major, table in resources.table("cuda_wheels.toml").items()}


def wheel_of(soname: str, major: int | None = None) -> str | None:
    """The wheel that ships exactly this soname; of ``major`` where several do, else of the newest."""
    shipping = {number: table[soname] for number, table in tables().items() if soname in table}
    if not shipping:
        return None
    return shipping.get(major or 0) or shipping[max(shipping)]

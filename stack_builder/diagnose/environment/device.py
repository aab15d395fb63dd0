"""Code for GPUs inside the shared objects of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stack_builder.diagnose.environment.facts import DeviceCode, Object
from stack_builder.elf.ahead import scattered
from stack_builder.elf.fatbin import Header, count, headers
from stack_builder.elf.layout import ElfError
from stack_builder.trees import FileTree
from stack_builder.trees.mapping import ease

VENDOR = "nvidia-"
"""NVIDIA's libraries keep most of their code in containers of their own (cuFFT's fat binary has sm_75 alone, and runs
everywhere), so their fat binaries prove nothing."""

_EASED = 512  # headers; each can make 64 KiB of an object resident


def of_vendor(found: Object) -> bool:
    """Whether an object is NVIDIA's own; most headers of fat binaries in a stack are theirs, and need not be read."""
    return (found.owner or "").startswith(VENDOR)


def read_device_code(tree: FileTree, paths: Iterable[str], owners: Mapping[str, str]) -> Iterator[DeviceCode]:
    """Yield what is known of each object that has any; only headers are looked at.

    Each object is mapped for itself and unmapped again: installed, they have ten gigabytes.
    """
    for path in paths:
        owner = owners.get(path)
        try:
            with tree.outline(path) as data:
                scattered(data)
                found = count(_eased(headers(data, path)))
        except ElfError as error:
            yield DeviceCode(path, owner, unread=error.what)
            continue
        if found:
            yield DeviceCode(path, owner, tuple(found.sass), tuple(found.ptx))


def _eased(found: Iterable[Header]) -> Iterator[Header]:
    """Let go, on the way, of the pages that were read: the headers of one object can lie all over a gigabyte."""
    for number, header in enumerate(found, 1):
        if number % _EASED == 0:
            ease()
        yield header

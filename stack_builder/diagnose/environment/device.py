"""Code for GPUs inside the shared objects of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stack_builder.diagnose.environment.facts import DeviceCode
from stack_builder.elf.fatbin import Header, count, headers
from stack_builder.elf.layout import ElfError
from stack_builder.trees import FileTree
from stack_builder.trees.mapping import ease

_EASED = 512  # headers; each can make 64 KiB of an object resident


def read_device_code(tree: FileTree, paths: Iterable[str], owners: Mapping[str, str]) -> Iterator[DeviceCode]:
    """Yield what is known of each object that has any; only headers are looked at.

    Each object is mapped for itself and unmapped again: installed, they have ten gigabytes.
    """
    for path in paths:
        owner = owners.get(path)
        try:
            with tree.outline(path) as data:
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

"""A wheel that is not installed, seen as the distribution it would become."""

from __future__ import annotations

from stack_builder.patchset.distribution import Distribution
from stack_builder.wheels import names
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.layout import read_layout

MAX_FILE = 64 << 20  # bytes; RECORD and modules are far smaller


def from_wheel(archive: WheelArchive) -> Distribution:
    """Wrap an open wheel; it is read for as long as the distribution is used.

    Raises:
        IntegrityError: it has not one ``.dist-info`` folder.
        UsageError: its file name is none of a wheel.
    """
    name = names.parse(archive.filename)

    def read(path: str) -> bytes:
        entry = archive.find(path)
        if entry is None:
            raise FileNotFoundError(path)
        return archive.read(entry, MAX_FILE)

    return Distribution(name.distribution, name.version, read_layout(archive).dist_info, read)

"""Mapped files: what is let go of can still be read, and is no memory of this process meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack_builder.trees import mapping

PAGE = 4096


def resident(path: Path) -> int:
    """Kilobytes that the kernel counts for the mappings of a file (proc(5), smaps)."""
    found = counting = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            counting = line.endswith(str(path))
        elif counting and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_pages_are_let_go_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(number.to_bytes(4, "little") * (PAGE // 4) for number in range(512)))
    with mapping.mapped(path) as view:
        part = view[PAGE:]
        assert sum(view[::PAGE]) == sum(number % 256 for number in range(512))
        assert resident(path) == 512 * PAGE // 1024

        monkeypatch.setattr(mapping, "MAX_RESIDENT", 1 << 40)
        mapping.ease()
        assert resident(path) == 512 * PAGE // 1024

        monkeypatch.setattr(mapping, "MAX_RESIDENT", 0)
        mapping.ease()
        assert resident(path) == 0
        assert part[:4] == (1).to_bytes(4, "little")
    mapping.ease()  # of a closed map there is nothing to let go

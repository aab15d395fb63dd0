"""A command in a folder, and what must hold whatever happens to it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hardening.faulty import Done, Faulty, Mode

MEMORY = 96 << 20  # bytes beyond what a process has that has loaded the package
BOUND = f"{MEMORY >> 20} MiB"


class Scene:
    """A command that can be run again and again from the same beginning.

    Args:
        faulty: runs it; its folder is as before the command.
        argv: the command.
        trusted: called after every fault; fails where something is trusted that is wrong.
        state: what a run has to lead to, read from the folder; every file and folder of it by default.
    """

    def __init__(
        self,
        faulty: Faulty,
        argv: tuple[object, ...],
        trusted: Callable[[], None],
        state: Callable[[Path], object] | None = None,
    ) -> None:
        self.faulty, self.argv, self._trusted, self._state = faulty, argv, trusted, state or snapshot
        self._begin = faulty.folder.with_name("begin")
        shutil.copytree(faulty.folder, self._begin, symlinks=True)
        done = self.run(Mode.COUNT)
        assert done.code == 0, done.err
        self.cases, self._end = done.seen, self._state(faulty.folder)

    def run(self, mode: Mode = Mode.NONE, at: int = 0, error: int = 0) -> Done:
        """Run the command."""
        return self.faulty(*self.argv, mode=mode, at=at, error=error)

    def begin(self) -> None:
        """Make the folder what it was before the first run."""
        shutil.rmtree(self.faulty.folder)
        shutil.copytree(self._begin, self.faulty.folder, symlinks=True)

    def ended(self) -> None:
        """Check that all is as after an undisturbed run, and no more."""
        assert self._state(self.faulty.folder) == self._end
        self._trusted()

    def survives(self, mode: Mode, at: int = 0, error: int = 0) -> Done:
        """Run it with a fault, and once more without: that must end as an undisturbed run does, leaving no more.

        Returns:
            how the run with the fault ended.
        """
        self.begin()
        done = self.run(mode, at, error)
        where = f"{mode.name} at {at}: {done}"
        missed = done.code == 0 and done.seen <= at  # downloads side by side need a call more or less
        assert done.killed == (mode in (Mode.KILL, Mode.TEAR)) or missed, where
        assert done.line or done.code in (0, -9), where
        self._trusted()
        again = self.run()
        assert again.code == 0, f"{where}\n{again.err}"
        assert max(done.peak, again.peak) < MEMORY, f"{where}\n{again}"
        assert self._state(self.faulty.folder) == self._end, where
        return done


def area(command: str) -> str:
    """The group of the table that a scene's rows belong to."""
    verb = command.split()[0]
    return "registries" if verb in ("pull", "push") else verb


def snapshot(folder: Path) -> dict[str, str]:
    """All files and folders below one, with what they hold; notes on layers and wheels hold times, which do not count."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file() and path.parent.name != "layers" and path.name != ".checked"
        else ""
        for path in sorted(folder.rglob("*"))
        if path.suffix != ".lock"
    }


def right_wheels(cache: Path) -> None:
    """Check that no wheel of a store is another than its place says; what is being removed has a dot in front."""
    for path in (cache / "wheels").rglob("[!.]*/*.whl"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name, path


def right_blobs(*roots: Path) -> None:
    """Check that no blob is another than its name says; what is being written has a name with a dot in front."""
    for root in roots:
        for path in root.glob("blobs/sha256/*"):
            assert path.name.startswith(".") or hashlib.sha256(path.read_bytes()).hexdigest() == path.name, path

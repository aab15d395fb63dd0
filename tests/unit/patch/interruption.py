"""Ends a run at any of its file system steps, as SIGKILL does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from stack_builder.diagnose.patches.site import Site
from stack_builder.patch import apply, transaction
from stack_builder.patchset.model import Patch


def reads_only(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "shutil.rmtree"}


def killed_before_step(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that is killed before its file system step ``number``; was there such a step?"""
    child = os.fork()
    if child == 0:
        left = [number]

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in CHANGES and not (event == "open" and reads_only(arguments)):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            action()
            os._exit(0)
        finally:
            os._exit(1)  # never back into pytest
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def interrupted(site: Site, series: list[Patch]) -> None:
    """Leave the site as a run does that is killed right after its commit."""
    child = os.fork()
    if child == 0:
        try:
            transaction._finish = lambda _: os.kill(os.getpid(), signal.SIGKILL)
            apply(site, series)
        finally:
            os._exit(1)  # never back into pytest
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert site.interrupted

"""Room for what a start writes: the JIT cache, the log, and shared memory where several ranks use it."""

from __future__ import annotations

from pathlib import Path

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.diagnose.room import judge_room, look, needs
from stack_builder.serve.place import Environment
from stack_builder.serve.plan import workspace
from stack_builder.serve.preflight.launch import Launch, Said

SHARED = Path("/dev/shm")  # noqa: S108 - the place that is meant


def check(launch: Launch) -> Said:
    """Look at the file systems that will be written to; a container's /dev/shm is sized by the launch itself."""
    wanted = {"jit": workspace(launch.plan.request.stack), "log": resources.state() / "servers"}
    if isinstance(launch.place, Environment) and launch.ranks > 1:
        wanted["shm"] = SHARED
    try:
        places = [look(folder, needs()[name]) for name, folder in wanted.items()]
    except OSError as error:
        return Said(skipped=(catalogue.skipped("RUN013", f"{error.filename}: {error.strerror}"),))
    return Said(judge_room(places))

"""What doctor says of the environment; for an image, of the machine that its container will run on."""

from __future__ import annotations

import os
from dataclasses import replace

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.doctor import examine
from stack_builder.diagnose.host import HostNeed, judge_host
from stack_builder.diagnose.target import TargetSpec
from stack_builder.serve.place import Environment
from stack_builder.serve.preflight.launch import Launch, Said
from stack_builder.stack.gpu import Gpu


def check(launch: Launch) -> Said:
    """Examine the environment with the variables that the server will have, or the host of a container."""
    if isinstance(launch.place, Environment):
        environ = {**os.environ, **launch.plan.env}
        target = TargetSpec("venv", str(launch.place.folder))
        report = examine(target, gpu=Gpu.parse(launch.architecture), environ=environ)
        return Said(report.findings, report.skipped)
    # Compilers, loader variables and /dev/shm of the host stay outside the container.
    host = replace(launch.host, environment={}, shm_bytes=None)
    stack = launch.spec.stack
    findings, skipped = judge_host(host, HostNeed(stack.cuda, compiles=False, min_driver=stack.min_driver))
    unread = catalogue.skipped(
        "ABI001", f"a start does not look into an image; stackb doctor {launch.place.target} does"
    )
    return Said(findings, (*skipped, unread))

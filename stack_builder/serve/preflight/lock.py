"""The stack's lock, judged without asking an index; and whether the target is what it locks."""

from __future__ import annotations

from datetime import UTC, datetime

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.verbs import NOT_ASKED, check_lock
from stack_builder.diagnose.locked import judge_image, judge_installed
from stack_builder.diagnose.patches import site
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import UsageError
from stack_builder.patchset import model
from stack_builder.progress import Silent
from stack_builder.serve.place import Environment
from stack_builder.serve.preflight.launch import Launch, Said
from stack_builder.stack import lock as locks


def check(launch: Launch) -> Said:
    """Judge the lock, and hold the target against it."""
    try:
        lock = locks.load(launch.folder)
    except UsageError as error:
        return Said(skipped=(catalogue.skipped("LOCK001", str(error)), catalogue.skipped("RUN012", "there is no lock")))
    report = check_lock(launch.folder, launch.spec, None, Silent(), datetime.now(UTC).date())
    unasked = tuple(each for each in report.skipped if each.reason != NOT_ASKED)
    return Said(report.findings, unasked, {"lock": lock.sha256}) + _held_against(launch, lock)


def _held_against(launch: Launch, lock: locks.Lock) -> Said:
    if isinstance(launch.place, Environment):
        place = site.find(TargetSpec("venv", str(launch.place.folder)), {"sglang"})
        installed = {name: each.version for name, each in place.distributions().items()}
        requirements = launch.folder / "requirements.txt"
        target = launch.place.target
        return Said(judge_installed(lock, installed, target=target, requirements=requirements, leave_out="sglang"))
    if launch.labels is None:
        return Said(skipped=tuple(catalogue.skipped(rule, launch.absent) for rule in ("RUN012", "PATCH006")))
    series = model.series(launch.spec.patches.series, launch.folder)
    image, gpu = launch.place.reference, launch.architecture
    return Said(*judge_image(lock, launch.spec, series, launch.labels, image=image, gpu=gpu, stack=launch.stack))

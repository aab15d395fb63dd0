"""Every command that the README shows is run, in its order, in one folder.

The commands that write an image run on a stack of the same name that locks three small wheels on a base without
compilers: the same code on 30 MB instead of 10 GB.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stack_builder.cli import app
from stack_builder.errors import ExitCode, MachineError
from stack_builder.image import daemon
from stack_builder.progress import Silent
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.wheels.fetch import Network, fetch
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import indexes_of
from stack_builder.wheels.store import Store

pytestmark = [pytest.mark.online, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
STACK = stack_file.DEFAULT_STACK
SMALL = {"cuda-pathfinder", "numpy", "nvidia-cuda-nvrtc"}
ON_THE_SMALL_STACK = re.compile(r"stackb (fetch|build|verify|sbom|doctor oci:)")
FINDS = re.compile(r"stackb explain")  # the log shows a crash; nothing else here is wrong


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) > 10
    assert all(command.startswith("stackb ") for command in COMMANDS)


def test_the_table_of_exit_codes_is_the_codes_own() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", README, re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in ExitCode]


def test_every_command_of_the_table_exists() -> None:
    named = {
        name for row in re.findall(r"^\| (`[a-z`, ]+`) \|", README, re.MULTILINE) for name in re.findall(r"\w+", row)
    }
    assert named == set(app.COMMANDS)


@pytest.fixture
def engine() -> Iterator[str | None]:
    """A place in a Docker engine that is nobody else's, emptied in the end; None without an engine."""
    try:
        client = daemon.connect()
    except MachineError:
        yield None
        return
    name = f"stackb-test-{os.getpid()}"
    yield f"docker:{name}/"
    for image in client.images.list(filters={"reference": f"{name}/*"}):
        client.images.remove(image.id, force=True)


def test_the_commands_work(tmp_path: Path, small_recipe: Path, small_cache: Path, engine: str | None) -> None:
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(ROOT / "tests" / "gpu" / "record" / "31015.log", place / "server.log")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "server-env"], check=True)
    lockfiles = small_stack(tmp_path, small_recipe)
    env = {**os.environ, "STACKB_CACHE_DIR": str(small_cache), "COLUMNS": "100"}
    fetch_sglang(Store(small_cache / "wheels"))
    for command in COMMANDS:
        if "docker:stackb/" in command and engine is None:
            continue
        here = {**env, "STACKB_LOCKFILES": str(lockfiles)} if ON_THE_SMALL_STACK.match(command) else env
        typed = command.replace("docker:stackb/", engine or "")
        words = [sys.executable, "-m", "stack_builder", *shlex.split(typed)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=place, env=here)
        expected = ExitCode.FINDINGS if FINDS.match(command) else ExitCode.CLEAN
        assert done.returncode == expected, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "internal error" not in done.stderr


def small_stack(folder: Path, recipe: Path) -> Path:
    """A folder of stacks with one: the default's name, three of its wheels, another base."""
    source = stack_file.find(STACK)
    lock = lock_file.load(source)
    artifacts = tuple(replace(each, via=()) for each in lock.artifacts if each.name in SMALL)
    place = folder / "lockfiles" / STACK
    place.mkdir(parents=True)
    requires = "".join(f'{each.name} = "=={each.version}"\n' for each in artifacts)
    (place / "stack.toml").write_text(
        f'[stack]\nname = "{STACK}"\ndescription = "small"\npython = "3.11"\ncuda = "13.0"\ngpu = ["sm_120"]\n'
        f'min_driver = "580.65.06"\n[requires]\n{requires}[base]\nrecipe = "{recipe}"\nglibc = "2.36"\n'
    )
    requirements = "".join(f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in artifacts)
    lock_file.save(place, replace(lock, artifacts=artifacts, exclude_newer=None, collisions=()), requirements)
    return folder / "lockfiles"


def fetch_sglang(store: Store) -> None:
    """Bring the one wheel that `stackb sglang` reads."""
    folder = stack_file.find(STACK)
    spec, lock = stack_file.load(folder), lock_file.load(folder)
    lock = replace(lock, artifacts=tuple(each for each in lock.artifacts if each.name == "sglang"))
    with Http() as http:
        fetch(lock, store, network=lambda: Network(http, indexes_of(spec, http)), progress=Silent())

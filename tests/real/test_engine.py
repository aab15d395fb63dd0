"""``build --output docker:TAG`` and the Docker engine that answers: what travels, what it calls the image, what stays.

The same tests run against a newer engine, with either of its image stores, by ``make test-engine``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stack_builder.image import daemon
from tests.real.conftest import keeps_blobs
from tests.unit.image.conftest import kit, make_wheel  # noqa: F401 - fixtures

pytestmark = pytest.mark.docker

# A build that never ends, and sends at once what it has. Nothing of the others takes long enough to be sent ahead.
UNENDING = """
import time
from stack_builder.__main__ import main
from stack_builder.image import ahead, build
ahead._PATIENCE = 0
build._Build._finish = lambda *_: time.sleep(120)
main()
"""
DEMO = "demo-1.0-py3-none-any.whl"
UNFINISHED = {"label": "dev.stackb.unfinished"}


@dataclass(frozen=True)
class Builds:
    """A stack of two tiny wheels, on a base and with contents that no engine has seen.

    Attributes:
        folder: that of the test.
        tag: what the image is to be called.
        client: of the engine.
        ids: of the images that were built.
    """

    folder: Path
    tag: str
    client: Any
    ids: set[str] = field(default_factory=set)

    def argv(self, *command: str) -> list[str]:
        return [*command, "--offline", "--from", f"{self.folder}/wheels", "--jobs", "1"]

    def build(self, *program: str) -> list[str]:
        program = program or ("-m", "stack_builder")
        build = ["build", f"{self.folder}/tiny", "--base", f"oci:{self.folder}/base", "--no-bytecode"]
        return [sys.executable, *program, *self.argv(*build), "--output", f"docker:{self.tag}"]

    def built(self) -> tuple[dict[str, str], str]:
        """Build; gives what stands in the first and last lines, and the line about what was sent."""
        done = subprocess.run(self.build(), capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        said = {line.split()[0]: line.split()[1] for line in lines[:2]}
        said["id"] = re.fullmatch(rf"Docker: {self.tag} \((.+)\)", lines[-1])[1]  # type: ignore[index]
        self.ids.add(said["id"])
        return said, next(line for line in done.stderr.splitlines() if "layers sent" in line)

    def unfinished(self) -> list[str]:
        return [image.id for image in self.client.images.list(all=True, filters=UNFINISHED)]


@pytest.fixture
def builds(
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
    tmp_path: Path,
) -> Iterator[Builds]:
    made = [make_wheel(name, {f"{name}.py": f"x = '{os.urandom(8).hex()}'\n".encode()}) for name in ("demo", "tool")]
    kit.write_stack(tmp_path / "tiny", [kit.wheel_record(path) for path in made])
    kit.write_oci_layout(tmp_path / "base", [kit.tar_bytes({"usr/bin/python3.11": os.urandom(64)})])
    client = daemon.connect()
    found = Builds(tmp_path, f"stackb-test-engine:{os.getpid()}", client)
    yield found
    for identity in found.ids:
        client.images.remove(identity, force=True)
    client.close()


def test_only_what_is_missing_travels_and_the_image_is_the_printed_one(
    builds: Builds,
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
) -> None:
    said, sent = builds.built()
    # base, environment, demo, tool, linker; of these a store of blobs may have two from images of other tests
    assert int(sent.split()[0]) in ((3, 5) if keeps_blobs(builds.client) else (5,))
    inspect = ["docker", "image", "inspect", builds.tag]
    shown = json.loads(subprocess.run(inspect, capture_output=True, check=True).stdout)[0]
    assert shown["Id"] == said["id"] == said["image" if keeps_blobs(builds.client) else "config"]
    assert (f"{builds.tag.partition(':')[0]}@{said['image']}" in shown["RepoDigests"]) == keeps_blobs(builds.client)
    assert shown["Config"]["Labels"]["dev.stackb.cuda"] == "13.0"
    for quick in ([], ["--quick"]):
        verify = [sys.executable, "-m", "stack_builder", *builds.argv("verify", f"image:{builds.tag}"), *quick]
        verified = subprocess.run([*verify, "--format", "json"], capture_output=True, check=True)
        assert json.loads(verified.stdout)["findings"] == []

    assert builds.built() == (said, "0 of 5 layers sent, the engine had the others")

    tool = make_wheel("tool", {"tool.py": b"x = 'another'\n"})
    shutil.rmtree(builds.folder / "tiny")
    kit.write_stack(builds.folder / "tiny", [kit.wheel_record(path) for path in (tool.with_name(DEMO), tool)])
    other, sent = builds.built()
    # a classic store keeps no blobs, only layers unpacked on top of each other: it wants the changed one and all above
    assert sent == f"{1 if keeps_blobs(builds.client) else 2} of 5 layers sent, the engine had the others"
    assert other["image"] != said["image"]
    assert builds.client.images.get(builds.tag).id == other["id"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_unfinished_stays(builds: Builds, number: signal.Signals) -> None:
    """Ctrl-C takes it along; what SIGKILL leaves, the next build removes."""
    with subprocess.Popen(builds.build("-c", UNENDING), stderr=subprocess.PIPE, text=True) as child:
        for _ in range(600):
            if builds.unfinished() or child.poll() is not None:
                break
            time.sleep(0.1)
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    left = builds.unfinished()
    if number is signal.SIGINT:
        assert (child.returncode, errors.splitlines()[-1]) == (130, "stackb: interrupted")
        assert "Traceback" not in errors
        assert left == []
    else:
        assert child.returncode == -number
        assert left
        said, _ = builds.built()
        assert builds.unfinished() == []
        assert builds.client.images.get(builds.tag).id == said["id"]

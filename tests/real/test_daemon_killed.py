"""A Docker engine of our own that is killed while it loads an image: what the user sees, and that a retry mends it.

It runs in namespaces of its own: an engine without a bridge removes the docker0 of another in the same network, and one
that is killed leaves a process and mounts behind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hardening.plugin import Recorder
from tests.unit.image.conftest import base_layout, kit, make_wheel  # noqa: F401 - fixtures

SIZE = 24 << 20  # bytes that do not compress: time enough to be killed in
TAG = "stackb-test-killed:latest"
FIX = "See that it runs, then run it again: it keeps the layers that it has."


NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# SIOCSIFFLAGS and IFF_UP: a new network has a loopback interface that is down
ENGINE = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_one:
    fcntl.ioctl(any_one, 0x8914, struct.pack("16sh", b"lo", 1))
os.execvp("dockerd", ["dockerd", *sys.argv[1:]])
"""


class Daemon:
    """``dockerd`` with folders, a socket, processes, mounts and a network of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, f"unix://{folder}/docker.sock"
        self.blobs = folder / "data" / "tmp"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [*NAMESPACES, sys.executable, "-c", ENGINE, "--host", self.host, "--pidfile", self.folder / "pid"]
        argv += ["--data-root", self.folder / "data", "--exec-root", self.folder / "exec"]
        argv += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        (self.folder / "pid").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "exec", ignore_errors=True)  # process numbers, which begin anew in a new namespace
        log = self.folder / "log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(argv, stdout=file, stderr=file)
        deadline = time.monotonic() + 120
        while subprocess.run(["docker", "-H", self.host, "version"], capture_output=True, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the engine does not start:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)

    def beside(self, argv: list[object]) -> list[object]:
        """A command that runs in the engine's network, so that each finds the other's loopback interface."""
        assert self._process is not None
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", *argv]

    def kill(self) -> None:
        """SIGKILL to all that is in there."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def arrived(self) -> int:
        """Bytes of layers that it has downloaded and not yet put in place."""
        found = 0
        for path in self.blobs.glob("GetImageBlob*"):
            try:
                found = max(found, path.stat().st_size)
            except FileNotFoundError:
                continue
        return found

    def image_id(self) -> str:
        argv = ["docker", "-H", self.host, "image", "inspect", TAG, "--format", "{{.Id}}"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make namespaces")
    folder = tmp_path_factory.mktemp("d")  # a socket's path has at most 108 bytes
    daemon = Daemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


def bridged() -> bool:
    """Whether this machine's own engine has its bridge."""
    return "docker0" in {name for _, name in socket.if_nameindex()}


@pytest.mark.docker
def test_a_daemon_killed_while_it_loads(
    engine: Daemon,
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
    base_layout: Path,  # noqa: F811
    tmp_path: Path,
    private_cache: Path,
    hardened: Recorder,
) -> None:
    before = bridged()
    made = [make_wheel("demo", {"demo.bin": random.Random(1).randbytes(SIZE)}), make_wheel("tool", {"tool.py": b""})]
    kit.write_stack(tmp_path / "tiny", [kit.wheel_record(path) for path in made])
    argv = [sys.executable, "-m", "stack_builder", "build", tmp_path / "tiny", "--base", f"oci:{base_layout}"]
    argv += ["--offline", "--from", tmp_path / "wheels", "--no-bytecode", "--output"]
    environment = {**os.environ, "DOCKER_HOST": engine.host}
    layout = subprocess.run([*argv, tmp_path / "out"], env=environment, capture_output=True, text=True, check=False)
    assert layout.returncode == 0, layout.stderr
    lines = set()
    moments = (1, SIZE // 2)
    for moment in moments:
        with subprocess.Popen(
            engine.beside([*argv, f"docker:{TAG}"]),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            while child.poll() is None and engine.arrived() < moment:
                time.sleep(0.001)
            assert child.poll() is None, child.communicate()
            engine.kill()
            out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (3, ""), err
        assert not any(sign in err for sign in ("Traceback", "internal error"))
        lines |= {line for line in err.splitlines() if line.startswith("stackb: ")}
        engine.start()
    assert lines == {f"stackb: {TAG}: the Docker engine broke the connection off. {FIX}"}
    subprocess.run(engine.beside([*argv, f"docker:{TAG}"]), env=environment, capture_output=True, check=True)
    index = json.loads((tmp_path / "out/index.json").read_bytes())
    manifest = tmp_path / "out/blobs" / index["manifests"][0]["digest"].replace(":", "/")
    assert engine.image_id() == json.loads(manifest.read_bytes())["config"]["digest"]
    assert bridged() == before
    fault = "the engine is killed while it loads an image: at its first bytes, and half-way"
    hardened("docker", fault, tried=len(moments), survived=len(moments), code=3, shown=lines.pop())

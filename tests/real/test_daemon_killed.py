"""A Docker engine of our own that is killed while it loads an image: what the user sees, and that a retry mends it.

Opt-in, for a machine without other containers: ``STACKB_TEST_KILL_ENGINE=1 pytest tests/real/test_daemon_killed.py``.
A second engine without a bridge removes the docker0 of the first, which then starts no container that wants a network.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.image.conftest import base_layout, kit, make_wheel  # noqa: F401 - fixtures

SIZE = 24 << 20  # bytes that do not compress: time enough to be killed in
TAG = "stackb-test-killed:latest"


class Daemon:
    """``dockerd`` with folders and a socket of its own, and no network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, f"unix://{folder}/docker.sock"
        self.blobs = folder / "data" / "tmp"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = ["dockerd", "--host", self.host, "--pidfile", self.folder / "pid", "--bridge", "none"]
        argv += ["--data-root", self.folder / "data", "--exec-root", self.folder / "exec", "--iptables=false"]
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while subprocess.run(["docker", "-H", self.host, "version"], capture_output=True, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.skip("no second Docker engine can be started here")
            time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)
        # a daemon mounts its folder on itself, and one that is killed leaves that
        while subprocess.run(["umount", self.folder / "data"], capture_output=True, check=False).returncode == 0:
            pass
        with suppress(OSError, ValueError):  # what a killed daemon left running and no later one took over
            os.kill(int((self.folder / "exec/containerd/containerd.pid").read_text()), signal.SIGTERM)

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
    if not os.environ.get("STACKB_TEST_KILL_ENGINE"):
        pytest.skip("takes docker0 from the engine that runs: STACKB_TEST_KILL_ENGINE=1")
    folder = tmp_path_factory.mktemp("d")  # a socket's path has at most 108 bytes
    daemon = Daemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.docker
def test_a_daemon_killed_while_it_loads(
    engine: Daemon,
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
    base_layout: Path,  # noqa: F811
    tmp_path: Path,
    private_cache: Path,
) -> None:
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
            [*argv, f"docker:{TAG}"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            while child.poll() is None and engine.arrived() < moment:
                time.sleep(0.001)
            assert child.poll() is None, child.communicate()
            engine.kill()
            out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (3, ""), err
        assert "Traceback" not in err
        lines |= {line for line in err.splitlines() if line.startswith("stackb: ")}
        engine.start()
    assert len(lines) == 1, lines
    subprocess.run([*argv, f"docker:{TAG}"], env=environment, capture_output=True, check=True)
    index = json.loads((tmp_path / "out/index.json").read_bytes())
    manifest = tmp_path / "out/blobs" / index["manifests"][0]["digest"].replace(":", "/")
    assert engine.image_id() == json.loads(manifest.read_bytes())["config"]["digest"]

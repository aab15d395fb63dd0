"""Starting a server: as a child on this machine, or in a container. Both give a :class:`Server`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from stack_builder.errors import MachineError, engine_says, no_engine
from stack_builder.serve.plan import LaunchPlan
from stack_builder.serve.processes import ProcessId, end_session, listener, session_members

_REAPED = 2.0  # seconds in which the kernel gives the exit code of a process that was killed
# seconds; SGLang looks for SIGTERM every 5 s, lets open requests end, and gives its schedulers 15 s (0.5.17); without
# requests a server with CUDA graphs took 5-8 s on an H200
STOP_PATIENCE = float(os.environ.get("STACKB_STOP_PATIENCE", "30"))
_SHARED_MEMORY = "32g"  # NCCL and SGLang's own queues; Docker's default of 64 MB ends in "bus error"


class Server(Protocol):
    """A server that was started."""

    @property
    def alive(self) -> bool:
        """Whether its main process still runs."""

    @property
    def exit_code(self) -> int | None:
        """How it ended: negative for a signal, as :mod:`subprocess` has it; None while it runs, or unknown."""

    def owns(self, port: int) -> bool:
        """Whether the listener on a TCP port is this server and not another process."""

    def stop(self) -> tuple[int, ...]:
        """Stop it and all its children; gives the pids that had to be killed.

        Raises:
            MachineError: some of it does not end, or the engine that runs it does not answer.
        """


class Launcher(Protocol):
    """A way to start a server."""

    def launch(self, plan: LaunchPlan, log: Path) -> Server:
        """Start the server; everything it prints goes to ``log``."""


@dataclass(slots=True)
class LocalServer:
    """A process on this machine: the leader of its own session, so that no child escapes.

    Attributes:
        identity: pid and start time of the leader.
        child: the handle, in the process that started it; None in a later ``--status`` or ``--stop``.
    """

    identity: ProcessId
    child: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """See :class:`Server`."""
        return self.child.poll() is None if self.child is not None else self.identity.alive

    @property
    def exit_code(self) -> int | None:
        """See :class:`Server`."""
        return None if self.child is None else self.child.poll()

    def owns(self, port: int) -> bool:
        """See :class:`Server`."""
        return listener(port) in session_members(self.identity.pid)

    def stop(self) -> tuple[int, ...]:
        """See :class:`Server`."""
        # The leader may be long dead while its schedulers live: its number is still their session's.
        killed = end_session(self.identity, patience=STOP_PATIENCE)
        if self.child is not None:
            # Dead by now. Not waited for without end: Ctrl-C inside poll() can leave the lock taken that wait() takes.
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=_REAPED)
        return killed


class LocalLauncher:
    """Runs the interpreter of a virtual environment on this machine."""

    def launch(self, plan: LaunchPlan, log: Path) -> Server:
        """See :class:`Launcher`."""
        for mount in plan.mounts:
            mount.host.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            child = self._start(plan, output)
        identity = ProcessId.of(child.pid)
        if identity is None:  # a child is a zombie until it is waited for, so it has an entry in any case
            raise MachineError("the server's process cannot be seen in /proc", fix="mount /proc")
        return LocalServer(identity, child)

    def _start(self, plan: LaunchPlan, output: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                plan.argv,
                env={**os.environ, **plan.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            fix = "give --venv DIR with a working bin/python"
            raise MachineError(error.strerror or str(error), where=plan.argv[0], fix=fix) from error


@dataclass(slots=True)
class DockerServer:
    """A container.

    Attributes:
        container: of the Docker SDK.
        pump: the process that copies its output to the log; None in a later ``--status`` or ``--stop``.
    """

    container: Any
    pump: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """See :class:`Server`."""
        return bool(self._state().get("Running"))

    @property
    def exit_code(self) -> int | None:
        """See :class:`Server`; Docker's 128 + n becomes -n."""
        state = self._state()
        if state.get("Running") or "ExitCode" not in state:
            return None
        code = int(state["ExitCode"])
        return code if code <= 128 else 128 - code

    def owns(self, port: int) -> bool:
        """See :class:`Server`. The engine publishes the port for this container, so a container that runs owns it."""
        return self.alive

    def stop(self) -> tuple[int, ...]:
        """See :class:`Server`."""
        import docker.errors
        import requests

        try:
            self.container.stop(timeout=int(STOP_PATIENCE))
            self._finish_log()
            self.container.remove(force=True)
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as error:
            where = f"container {self.container.id[:12]}"
            raise MachineError(engine_says(error), where=where, fix="stop the server once more") from error
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise no_engine(error, fix="start Docker, then stop the server once more") from error
        return ()

    def _finish_log(self) -> None:
        if self.pump is not None:
            self.pump.wait(timeout=STOP_PATIENCE)

    def _state(self) -> Mapping[str, Any]:
        import docker.errors

        try:
            self.container.reload()
        except docker.errors.NotFound:
            return {}
        state: Mapping[str, Any] = self.container.attrs["State"]
        return state


class DockerLauncher:
    """Runs the image with GPUs, shared memory and the model mounted read-only.

    Args:
        image: reference that the engine has.
        gpus: ``all``, ``none``, or device numbers such as ``0,1``.
        stack: what it is built from, as a user writes it in a command.
    """

    def __init__(self, image: str, *, gpus: str = "all", stack: str = "STACK") -> None:
        self._image = image
        self._gpus = gpus
        self._stack = stack

    def launch(self, plan: LaunchPlan, log: Path) -> Server:
        """See :class:`Launcher`."""
        import docker
        import docker.errors

        log.parent.mkdir(parents=True, exist_ok=True)
        for mount in plan.mounts:
            if not mount.read_only:
                mount.host.mkdir(parents=True, exist_ok=True)
        try:
            container = self._start(docker.from_env(), self.options(plan))
        except docker.errors.ImageNotFound as error:
            fix = f"run stackb build {self._stack} --output docker:{self._image}"
            raise MachineError("the Docker engine has no such image", where=self._image, fix=fix) from error
        except docker.errors.APIError as error:
            raise MachineError(engine_says(error), where=self._image) from error
        except docker.errors.DockerException as error:
            fix = "start Docker, or serve from a virtual environment with --in local"
            raise no_engine(error, fix=fix) from error
        # A process of its own, so that the log goes on when a detached stackb has left.
        with log.open("wb") as output:
            pump = subprocess.Popen(
                ["docker", "logs", "--follow", container.id],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return DockerServer(container, pump)

    def options(self, plan: LaunchPlan) -> dict[str, Any]:
        """Arguments of the Docker SDK's ``containers.create``; what ``--dry-run`` shows."""
        return container_options(plan, self._image, self._gpus)

    def _start(self, client: Any, options: dict[str, Any]) -> Any:
        """Create and start a container; one that cannot be started is not left behind."""
        import docker.errors

        container = client.containers.create(**options)
        try:
            container.start()
        except docker.errors.APIError as error:
            container.remove(force=True)
            # an engine without CAP_SYS_RESOURCE cannot raise limits: the server then runs with the engine's own
            if "rlim" in engine_says(error) and options.pop("ulimits", None) is not None:
                return self._start(client, options)
            raise
        return container


def container_options(plan: LaunchPlan, image: str, gpus: str) -> dict[str, Any]:
    """Arguments of the Docker SDK's ``containers.run`` for a plan; what ``--dry-run`` shows."""
    options: dict[str, Any] = {
        "image": image,
        "command": list(plan.argv),
        "environment": dict(plan.env),
        "init": True,  # reaps the schedulers that SGLang leaves behind when it kills its own tree
        "network_mode": "host",
        "shm_size": _SHARED_MEMORY,
        "ipc_mode": "private",
        "ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "stack", "Soft": 67108864, "Hard": 67108864}],
        "volumes": {
            str(mount.host): {"bind": mount.inside, "mode": "ro" if mount.read_only else "rw"} for mount in plan.mounts
        },
        "labels": {"stackb.stack": plan.request.stack},
    }
    if gpus != "none":
        wanted: dict[str, Any] = {"Driver": "nvidia", "Capabilities": [["gpu"]]}
        wanted |= {"Count": -1} if gpus == "all" else {"DeviceIDs": gpus.split(",")}
        options["device_requests"] = [wanted]
    return options

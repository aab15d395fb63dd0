"""Running the probes: one process each, bounded in time and output. A crash is a result, not an accident."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from stack_builder import resources
from stack_builder.errors import MachineError, UsageError, engine_says, no_engine
from stack_builder.probe import result
from stack_builder.report.model import Json

MAX_OUTPUT = 1 << 20  # bytes of a probe's output that are kept
TIME_LIMIT = 300.0  # seconds; a first JIT build of a kernel library takes over a minute
INSIDE = "/stackb/probes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one probe said, or how it ended without saying anything.

    Attributes:
        probe: its name.
        status: ``ok``, ``failed``, ``skipped``, ``crashed``, ``timed out`` or ``broken output``.
        reason: why, for all but ``ok``.
        facts: what it measured, as ``stackb schema probe`` has it.
        cause: name of what is wrong, where the probe has one.
    """

    probe: str
    status: str
    reason: str | None
    facts: Mapping[str, Json]
    cause: str | None = None


class Interpreter(Protocol):
    """Where probes run: an interpreter on this machine, or one in a container."""

    def run(self, script: str, env: Mapping[str, str], limit: float) -> tuple[int | None, str, str]:
        """Run one script of ``checks/probes``.

        Returns:
            exit code (negative for a signal, None when the time was up), stdout, stderr.
        """


class LocalInterpreter:
    """An interpreter of this machine.

    Args:
        python: its path.
        activated: whether its folder comes first on PATH, as in an environment that is active.
    """

    def __init__(self, python: Path, *, activated: bool = False) -> None:
        self._python, self._activated = python, activated

    def run(self, script: str, env: Mapping[str, str], limit: float) -> tuple[int | None, str, str]:
        """See :class:`Interpreter`."""
        command = [str(self._python), str(resources.checks() / "probes" / script)]
        path = {"PATH": on_path(self._python)} if self._activated else {}
        return _bounded(command, {**os.environ, **path, **env}, limit)


class ContainerInterpreter:
    """The interpreter of an image; the probes are mounted read-only, the network is off.

    Args:
        image: reference that the engine has.
        python: path of the interpreter inside.
        gpus: whether the container gets the machine's GPUs.
    """

    def __init__(self, image: str, *, python: str = "/opt/venv/bin/python3", gpus: bool = False) -> None:
        self._image, self._python, self._gpus = image, python, gpus

    def run(self, script: str, env: Mapping[str, str], limit: float) -> tuple[int | None, str, str]:
        """See :class:`Interpreter`."""
        import docker
        import docker.errors
        import requests

        options: dict[str, object] = {
            "command": [f"{INSIDE}/{script}"],
            "entrypoint": [self._python],
            "environment": dict(env),
            "network_mode": "none",
            "volumes": {str(resources.checks() / "probes"): {"bind": INSIDE, "mode": "ro"}},
        }
        if self._gpus:
            options["device_requests"] = [{"Driver": "nvidia", "Capabilities": [["gpu"]], "Count": -1}]
        try:
            container = docker.from_env().containers.create(self._image, **options)
        except docker.errors.ImageNotFound as error:
            fix = "load it first: stackb build --output docker:NAME"
            raise MachineError("the Docker engine has no such image", where=self._image, fix=fix) from error
        except docker.errors.APIError as error:
            raise MachineError(engine_says(error), where=self._image) from error
        except docker.errors.DockerException as error:
            raise no_engine(error, fix="start Docker, or probe an environment: venv:DIR") from error
        try:
            container.start()
            code = int(container.wait(timeout=limit)["StatusCode"])
        except docker.errors.APIError as error:  # such as GPUs that the engine knows nothing of
            raise MachineError(engine_says(error), where=self._image) from error
        except requests.exceptions.ConnectionError:  # how the SDK reports that the time is up
            return None, "", ""
        else:
            output = container.logs(stdout=True, stderr=False)[-MAX_OUTPUT:].decode(errors="replace")
            errors = container.logs(stdout=False, stderr=True)[-MAX_OUTPUT:].decode(errors="replace")
            return (code if code <= 128 else 128 - code), output, errors
        finally:
            container.remove(force=True)


def on_path(python: Path) -> str:
    """PATH with an interpreter's folder first: where an active environment has its ninja and nvcc."""
    return os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])


def available() -> tuple[str, ...]:
    """Names of the probes, sorted."""
    return tuple(sorted(p.stem for p in (resources.checks() / "probes").glob("*.py") if not p.stem.startswith("_")))


def run_probes(
    interpreter: Interpreter, *, gpu: str, only: Sequence[str] = (), limit: float = TIME_LIMIT
) -> Iterator[Outcome]:
    """Run the probes one after the other and yield each outcome as it comes.

    Args:
        interpreter: where to run them.
        gpu: architecture to compile for, such as ``sm_120``.
        only: names; all when empty.
        limit: seconds for each.

    Raises:
        UsageError: an unknown name.
        MachineError: the interpreter, engine or image is missing.
    """
    unknown = set(only) - set(available())
    if unknown:
        raise UsageError(f"no probe '{min(unknown)}'", where="--only", fix=f"choose among {', '.join(available())}")
    env = {"STACKB_PROBE": json.dumps({"gpu": gpu})}
    for name in only or available():
        yield read_outcome(name, *interpreter.run(f"{name}.py", env, limit), limit=limit)


def read_outcome(name: str, code: int | None, output: str, errors: str, *, limit: float) -> Outcome:
    """Understand how a probe ended."""
    if code is None:
        return Outcome(name, "timed out", f"no result within {limit:.0f} s", {})
    if code < 0:
        try:
            ending = signal.Signals(-code).name
        except ValueError:
            ending = f"signal {-code}"
        return Outcome(name, "crashed", f"{ending}; {_last_line(errors)}".rstrip("; "), {})
    try:
        said = result.read(output, name)
    except ValueError as error:
        wrong = _problem(error) if "{" in output else f"exit code {code} without a result; {_last_line(errors)}"
        return Outcome(name, "broken output", wrong.rstrip("; "), {})
    facts = said.model_dump(mode="json", by_alias=True)["facts"]
    return Outcome(name, said.status, said.reason, facts, said.cause)


def _problem(error: ValueError) -> str:
    """The first thing that is wrong with a result, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)[:500]
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the result'}: {first['msg']}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:500]


def _bounded(command: Sequence[str], env: Mapping[str, str], limit: float) -> tuple[int | None, str, str]:
    """Run a command in a session of its own; when the time is up the whole session is killed."""
    try:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(error.strerror or str(error), where=command[0]) from error
    try:
        output, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None, "", ""
    return (
        child.returncode,
        output[-MAX_OUTPUT:].decode(errors="replace"),
        errors[-MAX_OUTPUT:].decode(errors="replace"),
    )

"""The launch plan: the exact command, environment and mounts. What ``--dry-run`` prints is what runs."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stack_builder import resources
from stack_builder.errors import UsageError
from stack_builder.sglang.compile_caches import compile_caches
from stack_builder.stack.spec import ServeProfile

Speculation = Literal["eagle3", "none"]
Scalar = str | int | float | bool

_MODULE = ("-m", "sglang.launch_server")
# options that the plan sets itself, and how stackb calls them: a profile or the user's own arguments may not contradict
_OWN = {
    "--model-path": "--model",
    "--model": "--model",
    "--host": "--host",
    "--port": "--port",
    "--api-key": "--api-key-file",
}


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host as the server sees it; the same path on both sides when run locally."""

    host: Path
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked ``stackb serve`` for.

    Attributes:
        stack: name of the stack; names caches and the running server.
        spec: with or without speculation.
        model: folder or hub name of the target model.
        draft: folder or hub name of the draft model; required by ``eagle3``.
        adaptive: absolute path of the file for ``--speculative-adaptive-config``.
        host: address to bind.
        port: TCP port.
        api_key: required of clients; reaches the server by its arguments, and no log, report or receipt.
        insecure: the user insists on a public address without a key.
        extra: SGLang arguments after ``--``; they win over the stack's own.
    """

    stack: str
    spec: Speculation
    model: str
    draft: str | None = None
    adaptive: Path | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    insecure: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a launcher needs.

    Attributes:
        request: what it was made from.
        argv: interpreter and arguments, as executed.
        env: variables set on top of the launcher's environment.
        mounts: folders the server reads or writes.
        reasons: why an argument of the stack's profile is there, by option.
    """

    request: Request
    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where to ask the server from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.request.host, self.request.host)  # noqa: S104
        return f"http://{host}:{self.request.port}"

    @property
    def server_arguments(self) -> tuple[str, ...]:
        """SGLang's own arguments, without interpreter and module."""
        return self.argv[1 + len(_MODULE) :]

    def shell(self) -> str:
        """One line for a shell; the API key is masked."""
        words = [*(f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items()))]
        return " ".join([*words, *(shlex.quote(word) for word in self.masked_argv())])

    def masked_argv(self) -> tuple[str, ...]:
        """The command with the API key replaced by ``***``."""
        key = self.request.api_key
        return self.argv if not key else tuple("***" if word == key else word for word in self.argv)


def make_plan(
    request: Request,
    profile: ServeProfile,
    *,
    python: str,
    mounts: Sequence[Mount] = (),
    env: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Merge the stack's profile with the request.

    Args:
        request: what the user asked for.
        profile: ``[serve.eagle3]`` or ``[serve.none]`` of the stack.
        python: interpreter of the target.
        mounts: folders that a container needs; model paths below one of them are rewritten to its inside.
        env: variables of the place itself.

    Raises:
        UsageError: draft missing, an address that is open to others without a key, an argument given twice.
    """
    _check_address(request)
    if request.spec == "eagle3" and not request.draft:
        raise UsageError("EAGLE-3 needs a draft model", where="--draft", fix="give the draft's folder, or --spec none")
    arguments = dict(_own_arguments(request, mounts))
    extra = _options_of(request.extra)
    for option in extra:
        if option in _OWN:
            # the option's name stands last: a redactor takes what follows --api-key for the key
            raise UsageError("is set by stackb itself", where=option, fix=f"before the -- give {_OWN[option]}")
    profile_arguments = {f"--{name.lstrip('-')}": value for name, value in profile.args.items()}
    merged = {option: value for option, value in profile_arguments.items() if option not in extra}
    words: list[str] = []
    for option, value in {**arguments, **merged}.items():
        words += _words(option, value)
    return LaunchPlan(
        request=request,
        argv=(python, *_MODULE, *words, *request.extra),
        env={**(env or {}), **_environment(request), **profile.env},
        mounts=tuple(mounts),
        reasons={f"--{name.lstrip('-')}": reason for name, reason in profile.reasons.items()},
    )


def workspace(stack: str) -> Path:
    """Folder for all that the servers of a stack compile; no other stack may share it."""
    return resources.cache() / "jit" / stack


def _own_arguments(request: Request, mounts: Sequence[Mount]) -> dict[str, Scalar]:
    arguments: dict[str, Scalar] = {
        "--model-path": _inside(request.model, mounts),
        "--host": request.host,
        "--port": request.port,
    }
    if request.api_key:
        arguments["--api-key"] = request.api_key
    if request.spec == "eagle3":
        arguments["--speculative-algorithm"] = "EAGLE3"
        arguments["--speculative-draft-model-path"] = _inside(request.draft or "", mounts)
        if request.adaptive is not None:
            arguments["--speculative-adaptive"] = True
            arguments["--speculative-adaptive-config"] = _inside(str(request.adaptive), mounts)
    elif request.adaptive is not None:
        raise UsageError("adaptive speculation needs --spec eagle3", where="--adaptive")
    return arguments


def _environment(request: Request) -> dict[str, str]:
    return {**compile_caches(str(workspace(request.stack))), "PYTHONUNBUFFERED": "1"}


def _check_address(request: Request) -> None:
    if request.api_key or request.insecure:
        return
    try:
        loopback = request.host == "localhost" or ipaddress.ip_address(request.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(
            f"{request.host} lets anyone on the network use this server",
            where="--host",
            fix="set an API key (--api-key-file) or insist with --insecure",
        )


def _options_of(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def _words(option: str, value: Scalar) -> list[str]:
    if value is True:
        return [option]
    return [] if value is False else [option, str(value)]


def _inside(path: str, mounts: Sequence[Mount]) -> str:
    """A path as the server sees it; a hub name stays as it is."""
    for mount in mounts:
        if Path(path) == mount.host or mount.host in Path(path).parents:
            return str(Path(mount.inside) / Path(path).relative_to(mount.host))
    return path

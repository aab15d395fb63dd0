"""``stackb serve``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import jsontext, progress, resources
from stack_builder.cli.arguments import ServerArguments, read_key, split_server_arguments
from stack_builder.cli.output import Format, emit, redacted, table, write
from stack_builder.errors import ExitCode, UsageError
from stack_builder.report import Report
from stack_builder.serve import launchers, servers
from stack_builder.serve.place import Environment, Image, Place
from stack_builder.serve.plan import LaunchPlan, Request, make_plan
from stack_builder.sglang import checkpoint
from stack_builder.stack import spec as stacks
from stack_builder.stack.gpu import Gpu
from stack_builder.stack.spec import ServeProfile, StackSpec


class Spec(StrEnum):
    """Choices of ``--spec``."""

    EAGLE3 = "eagle3"
    NONE = "none"


class Where(StrEnum):
    """Choices of ``--in``."""

    DOCKER = "docker"
    LOCAL = "local"


def command(
    stack: Annotated[
        str | None, typer.Argument(help="Stack by name or folder; its profile gives the defaults.")
    ] = None,
    extra: ServerArguments = None,
    spec: Annotated[Spec, typer.Option(help="With or without speculation.")] = Spec.EAGLE3,
    model: Annotated[str | None, typer.Option(help="Folder or hub name of the target model.")] = None,
    draft: Annotated[str | None, typer.Option(help="Folder or hub name of the EAGLE-3 draft.")] = None,
    adaptive: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Adaptive speculation by this JSON (stackb policy)."),
    ] = None,
    where: Annotated[
        Where, typer.Option("--in", help="In the stack's image, or a virtual environment.")
    ] = Where.DOCKER,
    venv: Annotated[Path | None, typer.Option(help="With --in local: the environment; default $VIRTUAL_ENV.")] = None,
    image: Annotated[str | None, typer.Option(help="With --in docker: the image; default stackb/STACK.")] = None,
    gpus: Annotated[str, typer.Option(help="With --in docker: all, none, or numbers such as 0,1.")] = "all",
    gpu: Annotated[str | None, typer.Option(help="Check for this architecture; default: this machine's GPU.")] = None,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 30000,
    api_key_file: Annotated[Path | None, typer.Option(help="Clients must send the key in this file.")] = None,
    insecure: Annotated[bool, typer.Option(help="Bind a public address without a key.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds of silence after which a start has failed.")] = 600.0,
    despite: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Start although this rule found an error; can be repeated.")
    ] = None,
    skip_preflight: Annotated[bool, typer.Option("--skip-preflight", help="Start without the checks.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Make the checks, and start nothing.")] = False,
    detach: Annotated[bool, typer.Option(help="Return once the server is ready and leave it running.")] = False,
    status: Annotated[bool, typer.Option("--status", help="List the servers that run, and nothing else.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server on --port, and nothing else.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print command, environment and mounts.")] = False,
    format: Annotated[Format, typer.Option(help="Of the reports.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Launch an SGLang server, wait until it is ready, and show what is active in it."""
    if status:
        raise typer.Exit(_status())
    if stop:
        raise typer.Exit(_stop(port))
    gpu = None if gpu is None else str(Gpu.parse(gpu))
    stack, words = split_server_arguments(stack, extra)
    folder = stacks.find(stack)
    if not model:
        raise UsageError("no model was given", where="--model", fix="give a folder or a hub name")
    loaded = stacks.load(folder)
    request = Request(
        stack=loaded.stack.name,
        spec=spec.value,
        model=_local(model),
        draft=_local(draft) if draft else None,
        adaptive=None if adaptive is None else adaptive.absolute(),
        host=host,
        port=port,
        api_key=read_key(api_key_file),
        insecure=insecure,
        extra=tuple(words),
    )
    place: Place
    if where is Where.LOCAL:
        place = Environment(_environment(venv))
    else:
        place = Image(image or f"stackb/{request.stack}", _devices(gpus), stacks.argument(folder))
    plan = make_plan(
        request,
        loaded.serve.get(spec.value, ServeProfile(args={})),
        python=place.python,
        mounts=place.mounts(request),
        env=place.env,
    )
    if dry_run:
        _print_plan(plan, place)
        return
    if not skip_preflight or check:
        _check(plan, loaded, folder, place, gpu=gpu, despite=despite or [], only=check, format=format)
    raise typer.Exit(_serve(plan, place, patience=patience, detach=detach, format=format))


def _check(
    plan: LaunchPlan,
    spec: StackSpec,
    folder: Path,
    place: Place,
    *,
    gpu: str | None,
    despite: list[str],
    only: bool,
    format: Format,  # noqa: A002
) -> None:
    """Stop before the start where the checks find an error; say aside what else they found."""
    from stack_builder.diagnose import catalogue
    from stack_builder.serve.preflight import CANNOT_START, Launch, preflight, stops
    from stack_builder.serve.processes import check_port

    for rule in despite:
        catalogue.rule(rule)  # a mistyped one would insist on nothing
    if not only:  # the port is looked at again right before the start; here it saves the time of the checks
        check_port(plan.request.port)
    checked = preflight(Launch.here(plan, spec, folder, place, gpu=gpu))
    if only:
        raise typer.Exit(emit(checked, format, strict=CANNOT_START in checked.facts))
    standing = stops(checked, despite)
    if standing:
        emit(checked, format)
        way_on = " ".join(dict.fromkeys(f"--despite {finding.rule}" for finding in standing))
        sys.stderr.write(f"not started; mend what was found, or insist with {way_on}\n")
        raise typer.Exit(ExitCode.FINDINGS)
    if checked.counted or checked.skipped:
        emit(checked, Format.TEXT, aside=True)


def _serve(plan: LaunchPlan, place: Place, *, patience: float, detach: bool, format: Format) -> ExitCode:  # noqa: A002
    from stack_builder.serve import session

    log = resources.state() / "servers" / f"{plan.request.port}.log"
    with session.terminate_as_interrupt():
        try:
            started = session.start(plan, place.launcher(), log, patience=patience, progress=progress.for_terminal())
        except session.StartFailedError as error:
            emit(error.report, format)
            return ExitCode.FINDINGS
        if detach:
            return _show(started.report, format)
        ended = session.attach(started, plan, log, lambda: _show(started.report, format))
    if ended is None:
        return ExitCode.INTERRUPTED
    emit(ended, format)
    return ExitCode.FINDINGS


def _show(report: Report, format: Format) -> ExitCode:  # noqa: A002
    """Show a running server; for people, requested against active is a table of its own."""
    rows = report.facts["activity"]
    if format is not Format.TEXT or not isinstance(rows, list):
        return emit(report, format)
    code = emit(replace(report, facts={key: value for key, value in report.facts.items() if key != "activity"}), format)
    if rows:
        write("\n")
        columns = ("feature", "requested", "state", "source", "evidence")
        table(columns, (tuple(str(row[column]) for column in columns) for row in rows))
    return code


def _status() -> ExitCode:
    lines = []
    for entry in servers.entries():
        server = entry.server()
        state = "running" if server is not None and server.alive else "gone"
        log = redacted(str(entry.log))
        lines.append(f"{entry.port}\t{state}\t{entry.stack}\t{entry.kind}\t{entry.url}\t{log}\n")
    write("".join(lines))
    if not lines:
        sys.stderr.write("no server was started, or all were stopped\n")
    return ExitCode.CLEAN


def _stop(port: int) -> ExitCode:
    entry = next((entry for entry in servers.entries() if entry.port == port), None)
    if entry is None:
        raise UsageError("stackb started no server there", where=f"port {port}", fix="see stackb serve --status")
    server = entry.server()
    if server is not None:
        limit = f"{launchers.STOP_PATIENCE:.0f} s"
        progress.for_terminal().note(f"SGLang may end open requests before it stops; it is killed after {limit}")
    killed = () if server is None else servers.stop(server, port)
    servers.forget(port)
    left = f"; process{'es' if len(killed) > 1 else ''} that had to be killed: {len(killed)}" if killed else ""
    sys.stderr.write(f"stopped the server on port {port}{left}\n")
    return ExitCode.CLEAN


def _local(model: str) -> str:
    """Make a path absolute; a hub name stays."""
    if model.endswith(".gguf") and Path(model).is_file():  # which SGLang loads, too; nothing is checked of it
        return str(Path(model).absolute())
    return str(checkpoint.locate(model) or model)


def _devices(gpus: str) -> str:
    if re.fullmatch(r"all|none|(?:\d+|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d+|(?:GPU|MIG)-[\w/-]+))*", gpus) is None:
        raise UsageError(f"'{gpus}' names no GPUs", where="--gpus", fix="write all, none, or numbers such as 0,1")
    return gpus


def _environment(venv: Path | None) -> Path:
    folder = venv or (Path(os.environ["VIRTUAL_ENV"]) if os.environ.get("VIRTUAL_ENV") else None)
    if folder is None:
        raise UsageError("no virtual environment is active", where="--in local", fix="give --venv DIR")
    if not (folder / "bin" / "python3").exists():
        raise UsageError("is no virtual environment: it has no bin/python3", where=folder, fix="give another --venv")
    return folder.absolute()


def _print_plan(plan: LaunchPlan, place: Place) -> None:
    shown: dict[str, object] = {
        "command": list(plan.masked_argv()),
        "environment": dict(plan.env),
        "mounts": [
            {"host": str(mount.host), "inside": mount.inside, "read_only": mount.read_only} for mount in plan.mounts
        ],
        "reasons": dict(plan.reasons),
    }
    if isinstance(place, Image):
        shown["container"] = {**place.launcher().options(plan), "command": list(plan.masked_argv())}
    write(jsontext.dumps(shown, indent=1, sort_keys=True))

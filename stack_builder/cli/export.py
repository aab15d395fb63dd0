"""``stackb export``: a stack as a compose file or as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stack_builder.cli.arguments import ServerArguments, Stack, split_server_arguments
from stack_builder.cli.output import write
from stack_builder.errors import UsageError
from stack_builder.export import compose as compose_file
from stack_builder.export import kubernetes as kubernetes_objects
from stack_builder.export.service import POLICY_FILE, Service, label, read_policy
from stack_builder.serve.plan import Request, make_plan
from stack_builder.stack import spec as stacks
from stack_builder.stack.spec import ServeProfile

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

_PYTHON = "/opt/venv/bin/python3"
_PARALLEL = ("--tp-size", "--tp", "--tensor-parallel-size", "--dp-size", "--pp-size")

_Image = Annotated[str, typer.Option(metavar="REF@sha256:…", help="The image, by digest: what stackb push prints.")]
_Model = Annotated[str, typer.Option(help="Absolute path on the nodes, or hub name, of the target model.")]
_Draft = Annotated[str | None, typer.Option(help="The same of an EAGLE-3 draft; without one there is no speculation.")]
_Policy = Annotated[Path | None, typer.Option(help="Adaptive speculation by this JSON (stackb policy).")]
_Name = Annotated[str | None, typer.Option(help="Name of the objects; from the stack's if left out.")]
_Port = Annotated[int, typer.Option(min=1, max=65535)]
_Minutes = Annotated[int, typer.Option(min=1, max=1440, help="How long a start may take.")]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Serve without an API key.")]


@app.command()
def compose(
    image: _Image,
    model: _Model,
    stack: Stack = None,
    extra: ServerArguments = None,
    draft: _Draft = None,
    gpus: Annotated[int, typer.Option(min=1, max=64)] = 1,
    policy: _Policy = None,
    name: _Name = None,
    port: _Port = 30000,
    start_minutes: _Minutes = 60,
    insecure: _Insecure = False,
) -> None:
    """Print a compose file that serves a stack on one machine.

    It holds no secret: the API key is read from STACKB_API_KEY when the server is started.
    """
    made = _service(
        stack, extra, image, model, draft, policy, name, port=port, gpus=gpus, minutes=start_minutes, keyed=not insecure
    )
    write(compose_file.render(made))


@app.command()
def kubernetes(
    image: _Image,
    model: _Model,
    stack: Stack = None,
    extra: ServerArguments = None,
    draft: _Draft = None,
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="How many nodes one server spans.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=64)] = 8,
    policy: _Policy = None,
    name: _Name = None,
    port: _Port = 30000,
    start_minutes: _Minutes = 60,
    insecure: _Insecure = False,
) -> None:
    """Print Kubernetes objects that serve a stack: a Deployment, or for several nodes a LeaderWorkerSet.

    They hold no secret: the API key is referred to as a Secret that you create.
    """
    made = _service(
        stack,
        extra,
        image,
        model,
        draft,
        policy,
        name,
        port=port,
        gpus=gpus_per_node,
        nodes=nodes,
        minutes=start_minutes,
        keyed=not insecure,
    )
    write(kubernetes_objects.render(made))


def _service(
    stack: str | None,
    extra: Sequence[str] | None,
    image: str,
    model: str,
    draft: str | None,
    policy: Path | None,
    name: str | None,
    *,
    port: int,
    gpus: int,
    minutes: int,
    keyed: bool,
    nodes: int = 1,
) -> Service:
    stack, words = split_server_arguments(stack, extra)
    if any(word.partition("=")[0] == "--api-key" for word in words):
        raise UsageError("would write a secret into the file", where="--api-key", fix="leave it out: one is asked for")
    spec = stacks.load(stacks.find(stack))
    profile = spec.serve.get("eagle3" if draft else "none", ServeProfile(args={}))
    if policy is not None and draft is None:
        raise UsageError("is for speculation, which needs a draft", where="--policy", fix="give --draft")
    request = Request(
        stack=spec.stack.name,
        spec="eagle3" if draft else "none",
        model=model,
        draft=draft,
        adaptive=Path(POLICY_FILE) if policy else None,
        host="0.0.0.0",  # noqa: S104 - the container's own network; the key is added by the engine
        port=port,
        insecure=True,
        extra=(*words, *_parallel(words, profile, gpus * nodes)),
    )
    plan = make_plan(request, profile, python=_PYTHON)
    return Service(
        name=name or label(spec.stack.name),
        stack=spec.stack.name,
        image=image,
        argv=plan.argv,
        port=port,
        gpus=gpus,
        nodes=nodes,
        folders=tuple(dict.fromkeys(each for each in (model, draft) if each and each.startswith(("/", ".")))),
        env=plan.env,
        policy=read_policy(policy) if policy else None,
        keyed=keyed,
        start_minutes=minutes,
    )


def _parallel(words: Sequence[str], profile: ServeProfile, gpus: int) -> tuple[str, ...]:
    """Use all GPUs for tensor parallelism, unless the user or the stack says how to share them out."""
    given = {word.partition("=")[0] for word in words} | {f"--{key.lstrip('-')}" for key in profile.args}
    return () if gpus == 1 or given & set(_PARALLEL) else ("--tp-size", str(gpus))

"""``stackb sglang options|gates|contract|check``: what an SGLang takes, and what it would do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import jsontext
from stack_builder.cli.output import Format, emit, write
from stack_builder.diagnose import target as targets
from stack_builder.diagnose.sglang import locate
from stack_builder.errors import UsageError
from stack_builder.report import Report
from stack_builder.sglang import release
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.contract import Contract
from stack_builder.sglang.gates import readings
from stack_builder.sglang.gates.readings import GPUS
from stack_builder.sglang.options import Option
from stack_builder.sglang.source import SourceTree
from stack_builder.stack.gpu import Gpu
from stack_builder.terminal import printable

app = typer.Typer(no_args_is_help=True)

_Target = Annotated[str | None, typer.Option("--target", metavar="TARGET", help=targets.HELP)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Gpu = Annotated[str | None, typer.Option("--gpu", metavar="sm_XY", help="Judge for this GPU, such as sm_120.")]


def _open(target: str | None) -> SourceTree:
    return locate.source_of(targets.parse(target))


# A name is looked for as it is written in a launch line, dashes and all.
@app.command("options", context_settings={"ignore_unknown_options": True})
def options(
    pattern: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only options with this in a name.")] = None,
    target: _Target = None,
    as_json: _Json = False,
) -> None:
    """List the options of the launch command: type, choices, default, what is deprecated."""
    found = release.read(_open(target)).options
    shown = [o for o in found.options if pattern is None or any(pattern.lstrip("-") in n for n in o.names)]
    if not shown:
        raise UsageError(f"SGLang {found.version} has no option with '{pattern}' in its name")
    if as_json:
        write(jsontext.dumps({"sglang": found.version, "options": shown}, indent=1))
    else:
        write("".join(_option(o, full=len(shown) == 1) for o in shown))


def _option(option: Option, *, full: bool) -> str:
    kind = "" if option.type is None else f" {option.type.upper()}"
    many = {"+": " ...", "*": " ..."}.get(str(option.nargs), "")
    facts = []
    if option.choices is not None:
        facts.append("one of " + ", ".join(map(str, option.choices)))
    if option.takes_value and option.default is not None:
        facts.append(f"default {json.dumps(option.default)}")
    if option.required:
        facts.append("required")
    if option.deprecated:
        facts.append(f"deprecated, use {option.replacement}" if option.replacement else "deprecated")
    if option.unknown:
        facts.append(f"{' and '.join(option.unknown)} not readable from the source")
    text = f"{', '.join(option.names)}{kind}{many}" + (f"  ({'; '.join(facts)})" if facts else "") + "\n"
    return text + (f"    {printable(option.help)}\n" if full and option.help else "")


@app.command("gates")
def gates(target: _Target = None, gpu: _Gpu = None, as_json: _Json = False) -> None:
    """Show what becomes of each feature on a GPU: active, silently off, refused, and where the source says so."""
    asked = (str(Gpu.parse(gpu)),) if gpu else GPUS
    found = locate.gates_of(targets.parse(target), asked)
    if as_json:
        write(jsontext.dumps(found, indent=1))
        return
    write(f"SGLang {found.version}" + (" (as recorded; its wheel is not fetched)" if found.recorded else "") + "\n")
    for name, feature in readings.load().items():
        states = {g: found.gate(name, g) for g in asked}
        forms = "chosen by SGLang itself" if feature.default else " or ".join(feature.requested)
        write(f"\n{feature.title}: {forms}\n")
        for g, gate in states.items():
            instead = "".join(f"; {text}" for text in found.instead(name, g))
            detail = f"{gate.why}{instead if gate.state.value != 'active' else ''}"
            write(f"    {g:<7} {gate.state.value:<14} {detail}\n")
            write(f"            {gate.at}\n" if gate.at else "")


@app.command("contract")
def contract(
    architecture: Annotated[
        str | None, typer.Argument(metavar="[ARCHITECTURE]", help="Only this one, as config.json names it.")
    ] = None,
    target: _Target = None,
    as_json: _Json = False,
) -> None:
    """Show what EAGLE-3 needs of target and draft, and which architectures have it."""
    found = contracts.read(_open(target))
    if architecture is not None:
        body = _architecture(found, architecture)
        write(jsontext.dumps(body, indent=1) if as_json else _one_architecture(found, architecture))
        return
    body = {
        "sglang": found.version,
        "requirements": found.requirements,
        "targets": found.satisfying(Role.TARGET),
        "drafts": found.satisfying(Role.DRAFT),
        "wrappers": found.wrappers(),
        "architectures": len(found.registry.architectures),
    }
    if as_json:
        write(jsontext.dumps(body, indent=1))
        return
    write(f"SGLang {found.version}\n\n")
    for r in found.requirements:
        sites = f"  {r.sites[0]}" + (f" and {len(r.sites) - 1} more" if len(r.sites) > 1 else "") if r.sites else ""
        write(f"{r.role.value:<7} {'required' if r.required else 'optional'}  {r.attribute}{sites}\n")
    targets_, drafts = found.satisfying(Role.TARGET), found.satisfying(Role.DRAFT)
    write(f"\n{len(targets_)} of {len(found.registry.architectures)} architectures can be targets:\n")
    write(_wrapped(targets_))
    write(f"drafts:\n{_wrapped(drafts)}")
    could = [w.architecture for w in found.wrappers() if w.complete]
    write(f"{len(could)} more have an inner model that could answer (stackb patch contract ARCHITECTURE):\n")
    write(_wrapped(could))


def _architecture(found: Contract, architecture: str) -> dict[str, object]:
    cls, wrapper = found.model(architecture), found.wrapper(architecture)
    return {
        "sglang": found.version,
        "architecture": architecture,
        "at": f"{cls.path}:{cls.line}",
        "missing": {role.value: found.missing(architecture, role) for role in (Role.TARGET, Role.DRAFT)},
        "wrapper": wrapper,
    }


def _one_architecture(found: Contract, architecture: str) -> str:
    cls = found.model(architecture)
    lines = [f"{architecture}: {cls.path}:{cls.line}, SGLang {found.version}"]
    for role in Role.TARGET, Role.DRAFT:
        missing = found.missing(architecture, role)
        lines.append(
            f"as {role.value}: " + (f"lacks {', '.join(missing)}" if missing else "has all that EAGLE-3 needs")
        )
    wrapper = found.wrapper(architecture)
    if wrapper is not None:
        partial = f" (but not {', '.join(wrapper.partial)})" if wrapper.partial else ""
        lines.append(f"its {wrapper.inner}, {wrapper.classes[0]}{partial}, has {', '.join(wrapper.delegable)}")
    return "\n".join(lines) + "\n"


def _wrapped(names: Iterable[str]) -> str:
    import textwrap

    return textwrap.fill(", ".join(names) or "none", 100, initial_indent="    ", subsequent_indent="    ") + "\n"


@app.command("check")
def check(
    arguments: Annotated[list[str], typer.Argument(metavar="-- ARGUMENTS...", help="Those after launch_server.")],
    target: _Target = None,
    gpu: _Gpu = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable it gets.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of the model, where the line names none here.")] = None,
    draft: Annotated[Path | None, typer.Option(help="Folder of the draft, likewise.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where a rule could not run.")] = False,
    format: Annotated[Format, typer.Option("--format", help="How to print the report.")] = Format.TEXT,  # noqa: A002
) -> None:
    """Check a launch line before anything starts: options, how they go together, what is active on the GPU."""
    from stack_builder.diagnose.sglang import check as checks  # the other commands answer sooner without

    gpu = None if gpu is None else str(Gpu.parse(gpu))
    tree = _open(target)
    findings, skipped = checks.check_launch(
        tree, arguments, environment=_environment(env or ()), gpu=gpu, model=model, draft=draft
    )
    facts = {"sglang": tree.version, "arguments": list(arguments), "gpu": gpu}
    where = targets.parse(target).as_report_target()
    code = emit(Report(where, tuple(findings), tuple(skipped), facts), format, strict=strict)
    raise typer.Exit(code)


def _environment(given: Sequence[str]) -> Mapping[str, str]:
    for entry in given:
        if "=" not in entry:
            raise UsageError(f"'{entry}' is no variable", where="--env", fix="write NAME=VALUE")
    return dict(entry.split("=", 1) for entry in given)

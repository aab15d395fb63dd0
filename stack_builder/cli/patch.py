"""``stackb patch list|status|apply|revert|export|contract``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import jsontext
from stack_builder.cli.output import Format, emit, table, write
from stack_builder.diagnose import target as targets
from stack_builder.diagnose.patches import judge, site, sources
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import ExitCode
from stack_builder.files import atomic_write
from stack_builder.patch import verbs
from stack_builder.patchset import model
from stack_builder.patchset.delegation import from_delegation
from stack_builder.patchset.model import Hardware, Patch, Topology
from stack_builder.patchset.plan import Plan, plan
from stack_builder.patchset.states import State, assess
from stack_builder.stack import spec
from stack_builder.stack.gpu import Gpu
from stack_builder.terminal import printable

app = typer.Typer(no_args_is_help=True)

_Target = Annotated[str | None, typer.Argument(metavar="[TARGET]", help=targets.HELP)]
_Ids = Annotated[
    list[str] | None, typer.Option("--patch", metavar="ID", help="Take this patch, or a file ID.toml; can be repeated.")
]
_Stack = Annotated[str | None, typer.Option("--stack", metavar="STACK", help="Take the series of this stack.")]
_Gpu = Annotated[str | None, typer.Option("--gpu", metavar="sm_XY", help="Judge for this GPU, such as sm_120.")]
_Topology = Annotated[Topology | None, typer.Option("--topology", help="How the GPUs are linked.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
_Format = Annotated[Format, typer.Option("--format", help="How to print the result.")]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The patches a call is about; ``asked`` where it names them, so that each has to fit and be needed."""

    patches: tuple[Patch, ...]
    asked: bool
    hardware: Hardware

    @property
    def distributions(self) -> set[str]:
        """Names of all that is patched by these or by the tool's own."""
        return {patch.spec.distribution for patch in (*self.patches, *model.available().values())}


@app.command("list")
def list_patches(
    stack: _Stack = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List the patches there are, a stack's own included."""
    patches = list(model.available(spec.find(stack) if stack else None).values())
    if as_json:
        rows = [{**patch.spec.model_dump(mode="json", by_alias=True), "sha256": patch.sha256} for patch in patches]
        write(jsontext.dumps(rows))
    else:
        table(
            ("patch", "for", "sha256", "title"),
            ((p.id, f"{p.spec.distribution} {p.spec.versions}", p.sha256[:12], p.spec.title) for p in patches),
        )


@app.command()
def status(
    target: _Target = None,
    ids: _Ids = None,
    stack: _Stack = None,
    gpu: _Gpu = None,
    topology: _Topology = None,
    format: _Format = Format.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Say where each patch stands in TARGET. Reads only."""
    place = targets.parse(target)
    wanted = _wanted(place, ids, stack, gpu, topology)
    with sources.opened(place, wanted.distributions) as contents:
        interrupted = contents.site is not None and contents.site.interrupted
        names = () if interrupted else sorted(wanted.distributions)  # half-changed files have no state
        seen = [
            one for name in names for one in judge.look(name, contents.distributions, wanted.patches, wanted.hardware)
        ]
    report = judge.judge(
        place.as_report_target(), seen, asked=wanted.asked, installed=contents.installed, interrupted=interrupted
    )
    if format is Format.TEXT:
        rows = [(s.patch.id, s.status.state if s.status else "-", s.owner, _why(s)) for s in seen]
        if rows:
            table(("patch", "state", "in", "why"), rows)
        elif not report.findings:
            typer.echo("no patch is for what is installed there", err=True)
        if not report.findings:
            return
        report = replace(report, facts={})  # the table has shown them
    raise typer.Exit(emit(report, format))


@app.command()
def apply(
    target: _Target = None,
    ids: _Ids = None,
    stack: _Stack = None,
    gpu: _Gpu = None,
    topology: _Topology = None,
    dry_run: _DryRun = False,
) -> None:
    """Apply patches to an environment: all of them or none.

    Without --patch and --stack: every patch whose state is "applies"; a file that has drifted is named, and left alone.
    """
    place = targets.parse(target)
    wanted = _wanted(place, ids, stack, gpu, topology)
    found = site.find(place, wanted.distributions)
    only_for = None if wanted.asked else wanted.hardware
    plans = verbs.apply(found, wanted.patches, only_for=only_for, dry_run=dry_run)
    _show(plans, "nothing to apply: every patch is applied already, or not needed here", dry_run)
    if not wanted.asked:
        raise typer.Exit(_left_out(found, wanted))


def _left_out(found: site.Site, wanted: _Wanted) -> ExitCode:
    """Name patches that could not be taken along; drift is a finding, the other states are as they should be."""
    code = ExitCode.CLEAN
    distributions = found.distributions()
    for name in sorted(wanted.distributions & set(distributions)):
        for one in judge.look(name, distributions, wanted.patches, wanted.hardware):
            if one.status is not None and one.status.state in (State.DRIFTED, State.CONFLICT, State.NO_EFFECT):
                typer.echo(f"left out: {one.patch.id}, {one.status.state.value}: {printable(_why(one))}", err=True)
                code = ExitCode.FINDINGS if one.status.state is State.DRIFTED else code
    return code


@app.command()
def revert(target: _Target = None, ids: _Ids = None, dry_run: _DryRun = False) -> None:
    """Take patches back: all, or those of --patch. Files end as the wheel has them, to the byte."""
    found = site.find_patched(targets.parse(target))
    plans = verbs.revert(found, ids, dry_run=dry_run) if found else ()
    _show(plans, "nothing to revert: no patch is applied", dry_run)


@app.command()
def export(
    target: _Target = None,
    ids: _Ids = None,
    stack: _Stack = None,
    gpu: _Gpu = None,
    topology: _Topology = None,
    files: Annotated[
        Path | None, typer.Option("--files", metavar="DIR", help="Write the patched files below DIR instead.")
    ] = None,
) -> None:
    """Print what the patches change in TARGET's packages as a unified diff for patch -p1."""
    place = targets.parse(target)
    wanted = _wanted(place, ids, stack, gpu, topology)
    with sources.opened(place, wanted.distributions) as contents:
        for name in sorted(wanted.distributions & set(contents.distributions)):
            pristine = contents.distributions[name].pristine()
            series = [patch for patch in wanted.patches if patch.spec.distribution == name]
            if not wanted.asked:
                series = [one.patch for one in assess(series, pristine, wanted.hardware) if one.state is State.APPLIES]
            change = plan(pristine, series)
            if files is None:
                _write_bytes(change.diff())
                continue
            for path in change.modules:
                atomic_write(files / path, change.writes[path])


@app.command()
def contract(
    architecture: Annotated[str, typer.Argument(metavar="MODEL", help="Architecture, or a folder with a config.json.")],
    target: _Target = None,
) -> None:
    """Write the patch that lets a wrapper model hand EAGLE-3's calls on to its inner model.

    The patch goes to stdout. Save it as ID.toml and give that to --patch, or put it into patches/ of a stack's folder.
    """
    from stack_builder.diagnose.sglang import locate
    from stack_builder.sglang import checkpoint
    from stack_builder.sglang.contract import contract as contracts

    if Path(architecture).is_dir():
        architecture = checkpoint.read(Path(architecture)).architecture
    tree = locate.source_of(targets.parse(target))
    delegation = contracts.delegation_for(tree, contracts.read(tree), architecture)
    names = ", ".join(delegation.methods)
    patch = from_delegation(
        patch_id=f"eagle3-{re.sub('[^a-z0-9]+', '-', architecture.lower()).strip('-')}"[:80],
        distribution="sglang",
        version=tree.version,
        file=delegation.path,
        cls=delegation.class_name,
        methods=delegation.methods,
        reason=f"EAGLE-3 calls {names} on its target model; {architecture} does not hand them on to its inner model.",
    )
    write(patch.text)


def _wanted(
    target: TargetSpec, ids: list[str] | None, stack: str | None, gpu: str | None, topology: Topology | None
) -> _Wanted:
    if gpu is not None:
        gpu = str(Gpu.parse(gpu))
    named = stack or (target.value if target.kind == "stack" else None)
    folder = spec.find(named) if named else None
    loaded = spec.load(folder) if folder else None
    if gpu is None and loaded is not None:
        gpu = loaded.stack.gpu[0]
    if ids or loaded is not None:
        files = [Path(name) for name in ids or () if name.endswith(".toml")]
        names = [Path(name).stem if name.endswith(".toml") else name for name in ids or ()]
        patches = model.series(names or (loaded.patches.series if loaded else ()), folder, files)
    else:
        patches = tuple(model.available().values())
    return _Wanted(patches, bool(ids or loaded), Hardware(gpu, topology))


def _why(seen: judge.Seen) -> str:
    if seen.status is None:
        return ""
    return seen.status.detail or (f"no effect here: {seen.status.no_effect}" if seen.status.no_effect else "")


def _show(plans: Iterable[Plan], nothing: str, dry_run: bool) -> None:
    """Print the change on stdout, the same with and without --dry-run; what was done about it on stderr."""
    plans = tuple(plans)
    for change in plans:
        _write_bytes(change.diff())
        other = [path for path in change.writes if path not in change.modules]
        write("".join(f"write  {path}\n" for path in other) + "".join(f"remove {path}\n" for path in change.removes))
    if not plans:
        typer.echo(nothing, err=True)
    elif dry_run:
        typer.echo("dry run: nothing was changed", err=True)
    else:
        count = sum(len(change.modules) for change in plans)
        typer.echo(f"{count} modules changed; stackb patch status shows where each patch stands", err=True)


def _write_bytes(data: bytes) -> None:
    """Diffs keep the encoding of the files."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

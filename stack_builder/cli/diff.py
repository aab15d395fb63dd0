"""``stackb diff STACK STACK``: what changes from one stack to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import jsontext
from stack_builder.cli.output import write
from stack_builder.diagnose import difference
from stack_builder.diagnose.difference import Change
from stack_builder.diagnose.sglang import locate
from stack_builder.elf.object import exports
from stack_builder.errors import ExitCode, MachineError, StackbError, UsageError
from stack_builder.patchset import model
from stack_builder.patchset.states import State, assess
from stack_builder.patchset.wheel import from_wheel
from stack_builder.sglang import release
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.gates import table
from stack_builder.sglang.source import SourceTree
from stack_builder.stack import lock, spec
from stack_builder.stack.lock import Lock
from stack_builder.stack.spec import StackSpec
from stack_builder.terminal import printable
from stack_builder.trees.wheels import WheelsTree
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.store import Store

_OPTIONS, _CONTRACT, _GATES = "SGLang options", "EAGLE-3 contract", "gates"
# Libraries of torch that extensions link against.
_TORCH_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")


@dataclass(frozen=True, slots=True)
class _Side:
    given: str
    folder: Path
    spec: StackSpec
    lock: Lock

    @classmethod
    def load(cls, stack: str) -> _Side:
        folder = spec.find(stack)
        return cls(stack, folder, spec.load(folder), lock.load(folder))

    def wheel(self, name: str) -> Path:
        """The fetched wheel of a distribution.

        Raises:
            UsageError: the stack locks none.
            MachineError: it has not been fetched.
        """
        artifact = self.lock.artifact(name)
        if artifact is None or artifact.sha256 is None:
            raise UsageError(f"locks no {name}", where=self.folder.name)
        path = Store().find(artifact.sha256, artifact.filename, artifact.size)
        if path is None:
            raise MachineError("has not been fetched", where=artifact.filename, fix=f"run stackb fetch {self.given}")
        return path


def command(
    before: Annotated[str, typer.Argument(metavar="STACK", help="The stack to come from.")],
    after: Annotated[str, typer.Argument(metavar="STACK", help="The stack to go to.")],
    symbols: Annotated[bool, typer.Option("--symbols", help="Compare the symbols that torch exports, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what changes from one stack to another.

    Versions, CUDA, options of SGLang, EAGLE-3 contract, gates, patches no longer needed, symbols of torch.
    """
    old, new = _Side.load(before), _Side.load(after)
    sections: dict[str, list[Change]] = {}
    skipped: dict[str, str] = {}
    missing: set[str] = set()
    for title, changes in _sections(old, new, symbols=symbols):
        try:
            sections[title] = list(changes())
        except StackbError as error:
            skipped[title] = str(error)
            if isinstance(error, MachineError):  # not one that says that a stack locks no SGLang
                missing.add(title)
    if as_json:
        names = {"before": old.folder.name, "after": new.folder.name}
        write(jsontext.dumps({**names, "changes": sections, "skipped": skipped}, indent=1))
        raise typer.Exit(_ended(missing))
    write(f"{old.folder.name} -> {new.folder.name}\n")
    for title, found in sections.items():
        write(f"\n{title}: " + ("no change\n" if not found else f"{len(found)}\n"))
        write("".join(map(_line, found)))
    for title, reason in skipped.items():
        write(f"\n{title}: not compared: {printable(reason)}\n")
    raise typer.Exit(_ended(missing))


def _ended(missing: Set[str]) -> ExitCode:
    """3 where nothing of SGLang was compared, which is most of what the command is asked for."""
    return ExitCode.COULD_NOT_CHECK if missing >= {_OPTIONS, _CONTRACT, _GATES} else ExitCode.CLEAN


def _sections(old: _Side, new: _Side, *, symbols: bool) -> Iterator[tuple[str, Callable[[], Iterator[Change]]]]:
    yield "platform", lambda: difference.platforms(old.spec, new.spec)
    yield "wheels", lambda: difference.wheels(old.lock, new.lock)
    yield _OPTIONS, lambda: difference.options(*(release.read(_source(side)).options for side in (old, new)))
    yield _CONTRACT, lambda: difference.contract(*(contracts.read(_source(side)) for side in (old, new)))
    gpus = tuple(dict.fromkeys((*old.spec.stack.gpu, *new.spec.stack.gpu)))
    yield _GATES, lambda: difference.gates(*(table.read(_source(side), gpus) for side in (old, new)), gpus=gpus)
    yield "patches", lambda: _patches(old, new)
    if symbols:
        yield "symbols of torch", lambda: difference.symbols(*(_exports(side) for side in (old, new)))


def _source(side: _Side) -> SourceTree:
    return locate.of_stack(side.given)


def _patches(old: _Side, new: _Side) -> Iterator[Change]:
    """The series of the first stack, and its state on the wheels of both."""
    for patch in model.series(old.spec.patches.series, old.folder):
        states = [_state(patch, side) for side in (old, new)]
        note = "no longer needed" if states[1] is State.OBSOLETE else ""
        if states[0] is not states[1]:
            yield Change(patch.id, states[0].value, states[1].value, note)


def _state(patch: model.Patch, side: _Side) -> State:
    path = side.wheel(patch.spec.distribution)
    with path.open("rb") as file:
        (status,) = assess([patch], from_wheel(WheelArchive(file, path.name)))
        return status.state


def _exports(side: _Side) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    with WheelsTree([side.wheel("torch")]) as tree:
        for entry in tree.entries():
            name = entry.path.rsplit("/", 1)[-1]
            if name in _TORCH_LIBRARIES:
                with tree.open(entry.path) as view:
                    found[name] = frozenset(symbol for symbol, _ in exports(view, entry.path))
    return found


def _line(change: Change) -> str:
    note = f"  ({change.note})" if change.note else ""
    if change.before is None:
        text = f"  + {change.what}: {change.after}"
    elif change.after is None:
        text = f"  - {change.what}: {change.before}"
    else:
        text = f"  ~ {change.what}: {change.before} -> {change.after}"
    return printable(text + note) + "\n"

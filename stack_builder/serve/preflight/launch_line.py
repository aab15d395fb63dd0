"""The launch line: options, gates, the model and its draft, as the SGLang that shall run reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.sglang import pair
from stack_builder.diagnose.sglang.check import check_launch
from stack_builder.diagnose.sglang.locate import of_stack, source_of
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import MachineError
from stack_builder.report import Finding
from stack_builder.serve.place import Environment
from stack_builder.serve.preflight.launch import Launch, Said
from stack_builder.sglang.source import SourceTree


def check(launch: Launch) -> Said:
    """Read SGLang's source in the environment, or in the wheel that the image was built from."""
    try:
        tree = _source(launch)
    except MachineError as error:
        # An image can be here without its wheels. What they would have told is skipped, not passed.
        rules = ("SGL001", *pair.OF_MODEL, *(pair.OF_PAIR if launch.plan.request.draft else ()))
        return Said(skipped=tuple(catalogue.skipped(rule, str(error)) for rule in rules))
    model = Path(launch.plan.request.model)
    findings, skipped = check_launch(
        tree,
        _on_this_side(launch),
        environment=_environment(launch),
        gpu=launch.architecture,
        model=model if model.is_dir() else None,
    )
    return Said((*findings, *_release(tree, launch)), tuple(skipped), {"sglang": tree.version})


def _source(launch: Launch) -> SourceTree:
    if isinstance(launch.place, Environment):
        return source_of(TargetSpec("venv", str(launch.place.folder)))
    return of_stack(str(launch.folder))


def _release(tree: SourceTree, launch: Launch) -> tuple[Finding, ...]:
    wanted = launch.spec.requires.get("sglang")
    with suppress(InvalidVersion):  # a build of one's own may call itself anything
        if wanted is None or SpecifierSet(wanted).contains(tree.version, prereleases=True):
            return ()
    detail = f"the stack is for sglang{wanted}, the environment has {tree.version}"
    return (catalogue.finding("RUN011", detail=detail, distribution=f"sglang {tree.version}"),)


def _environment(launch: Launch) -> Mapping[str, str]:
    """The variables that SGLang gets on purpose: the plan's, and its own of this shell where it inherits them."""
    inherited = os.environ if isinstance(launch.place, Environment) else {}
    return {**{name: value for name, value in inherited.items() if name.startswith("SGLANG_")}, **launch.plan.env}


def _on_this_side(launch: Launch) -> tuple[str, ...]:
    """The server's arguments with paths of this machine in place of those in a container."""
    inside: Mapping[str, str] = {mount.inside: str(mount.host) for mount in launch.plan.mounts}
    return tuple(inside.get(word, word) for word in launch.plan.server_arguments)

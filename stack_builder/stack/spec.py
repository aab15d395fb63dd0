"""``stack.toml``: what is wanted, and why. Unknown keys are errors."""

from __future__ import annotations

import json
import re
import shlex
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from stack_builder import resources, tomltext
from stack_builder.errors import UsageError, refused

MAX_STACK_FILE = 1 << 20  # bytes; a stack file is a page or two


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        said = f"'{text}' is not a version specifier such as '==0.5.23'; for any version write '>=0'"
        raise ValueError(said) from error
    return text


def _without_extras(roots: object) -> object:
    """Say where extras belong before the pattern of a name refuses their brackets."""
    for key in roots if isinstance(roots, dict) else ():
        if (bracketed := re.fullmatch(r"([\w.-]+)\[([\w., -]+)\]", str(key))) is not None:
            name, extras = bracketed[1], json.dumps([part.strip() for part in bracketed[2].split(",")])
            raise ValueError(f"'{key}': write the extras into a table [extras], as {name} = {extras}")
    return roots


Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100), AfterValidator(canonicalize_name)
]
StackName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=80)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Extras = Annotated[tuple[Name, ...], Field(min_length=1)]
Reason = Annotated[str, StringConstraints(min_length=10, strip_whitespace=True)]
GpuName = Annotated[str, StringConstraints(pattern=r"^sm_[0-9]{2,3}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StackTable(_Model):
    """``[stack]``.

    ``exclude_newer`` is the last day (UTC, inclusive) whose uploads the resolver may see.
    """

    name: StackName
    description: str
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]{1,2}$")]
    platform: Literal["linux_x86_64", "linux_aarch64"] = "linux_x86_64"
    cuda: Annotated[str, StringConstraints(pattern=r"^[0-9]{2}\.[0-9]$")]
    gpu: Annotated[tuple[GpuName, ...], Field(min_length=1)]
    min_driver: str
    exclude_newer: date | None = None


class Index(_Model):
    """``[[index]]``: serves the listed packages and nothing else."""

    name: str
    url: Annotated[str, StringConstraints(pattern=r"^(https|file)://")]
    packages: Annotated[tuple[Name, ...], Field(min_length=1)]


class Override(_Model):
    """``[[override]]``: a departure from upstream's own pins, shown in every report."""

    package: Name
    version: Specifier
    reason: Reason
    expires: date


class Winner(_Model):
    """``[[winner]]``: which of several wheels that ship one path gives its bytes.

    ``packages`` lists the wheels concerned; ``gpu`` limits the choice to builds for these, all others if empty.
    """

    winner: Name
    packages: Annotated[tuple[Name, ...], Field(min_length=2)]
    gpu: tuple[GpuName, ...] = ()
    reason: Reason

    @model_validator(mode="after")
    def _winner_is_listed(self) -> Winner:
        if self.winner not in self.packages:
            raise ValueError(f"winner '{self.winner}' is not one of packages {list(self.packages)}")
        return self


class Accept(_Model):
    """``[[accept]]``: the upload chosen where an index lists one file name with several hashes."""

    filename: str
    sha256: Sha256
    reason: Reason


class Base(_Model):
    """``[base]``: a recipe of ``docker/base`` or an image by digest.

    ``glibc`` is the version that the base brings: it decides which ``manylinux`` wheels the lock may take.
    """

    glibc: Annotated[str, StringConstraints(pattern=r"^2\.[0-9]{1,2}$")]
    recipe: str | None = None
    image: Annotated[str, StringConstraints(pattern=r"@sha256:[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Base:
        if (self.recipe is None) == (self.image is None):
            raise ValueError("give either recipe or image (by digest)")
        return self


class Patches(_Model):
    """``[patches]``: the series applied to the wheels, in order."""

    series: tuple[str, ...] = ()


class ServeProfile(_Model):
    """``[serve.NAME]``: arguments of ``sglang.launch_server``, each with its reason."""

    args: dict[str, str | int | float | bool]
    env: dict[str, str] = {}
    reasons: dict[str, Reason] = {}


class StackSpec(_Model):
    """One stack file.

    ``requires`` holds the roots and ``extras``, by the name of a root, what pip writes in brackets behind it.
    """

    stack: StackTable
    requires: Annotated[dict[Name, Specifier], Field(min_length=1), BeforeValidator(_without_extras)]
    extras: dict[Name, Extras] = {}
    index: tuple[Index, ...] = ()
    override: tuple[Override, ...] = ()
    winner: tuple[Winner, ...] = ()
    accept: tuple[Accept, ...] = ()
    base: Base
    patches: Patches = Patches()
    serve: dict[str, ServeProfile] = {}

    @model_validator(mode="after")
    def _one_index_per_package(self) -> StackSpec:
        seen: dict[str, str] = {}
        for index in self.index:
            for package in index.packages:
                if package in seen:
                    raise ValueError(f"package '{package}' is listed by index '{seen[package]}' and '{index.name}'")
                seen[package] = index.name
        return self

    @model_validator(mode="after")
    def _extras_of_roots(self) -> StackSpec:
        for name in self.extras:
            if name not in self.requires:
                raise ValueError(f"[extras] names '{name}', which [requires] does not")
        return self

    def roots(self) -> list[str]:
        """Write the roots as requirements: ``name[extra,…]==version``."""
        brackets = {name: f"[{','.join(extras)}]" for name, extras in self.extras.items()}
        return [f"{name}{brackets.get(name, '')}{specifier}" for name, specifier in self.requires.items()]

    def winner_for(self, owners: frozenset[str], gpu: str) -> Winner | None:
        """Give the rule that decides between ``owners`` (normalised names) on ``gpu``, or None."""
        fallback = None
        for rule in self.winner:
            if owners <= set(rule.packages):
                if gpu in rule.gpu:
                    return rule
                if not rule.gpu:
                    fallback = fallback or rule
        return fallback


def parse(text: str, where: object) -> StackSpec:
    """Read a stack file.

    Raises:
        UsageError: not TOML, an unknown key, a value of the wrong form; names the key.
    """
    try:
        return StackSpec.model_validate(tomltext.loads(text))
    except ValidationError as error:
        fix = "compare with a stack.toml that ships with stackb (lockfiles/)"
        raise UsageError(refused(error, model=StackSpec, count=True), where=where, fix=fix) from error
    except ValueError as error:
        raise UsageError(f"not TOML: {error}", where=where) from error


def available() -> list[str]:
    """Names of the stacks that ship with the tool, newest first."""
    from packaging.version import Version

    names = (p.parent.name for p in resources.lockfiles().glob("*/stack.toml"))
    return sorted(names, key=lambda name: Version(name.rsplit("-", 1)[-1]), reverse=True)


def find(stack: str | None) -> Path:
    """Give the folder of a stack: by name, by path, or the default for None.

    Raises:
        UsageError: there is no such stack; lists those there are.
    """
    if stack is None:
        stack = DEFAULT_STACK
    by_name = resources.lockfiles() / stack.removeprefix("stack:")
    for folder in (by_name, Path(stack)):
        if (folder / "stack.toml").is_file():
            return folder
    raise UsageError(
        f"no stack '{stack}'", fix=f"choose one of {', '.join(available())} or give a folder with a stack.toml"
    )


def argument(folder: Path) -> str:
    """A stack as a user writes it in a command: the name of one that ships with the tool, else its folder, quoted."""
    return folder.name if folder.parent == resources.lockfiles() else shlex.quote(str(folder))


def load(folder: Path) -> StackSpec:
    """Read ``stack.toml`` of a stack's folder.

    Raises:
        UsageError: too large, not UTF-8, or as :func:`parse` says.
    """
    path = folder / "stack.toml"
    data = path.read_bytes()
    if len(data) > MAX_STACK_FILE:
        raise UsageError(f"larger than {MAX_STACK_FILE} bytes", where=path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error}", where=path) from error
    return parse(text, path)


DEFAULT_STACK = "cu130-sglang-0.5.23"

"""Recipes of ``docker/base`` and the locks beside them: which Debian packages a base is made of, each by hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from stack_builder import jsontext, resources, tomltext
from stack_builder.errors import UsageError, first_line, refused
from stack_builder.files import atomic_write
from stack_builder.stack.receipt import DebianPackage

SCHEMA_VERSION = 1

PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
PathPattern = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/*-]+$")]


class Recipe(BaseModel):
    """One ``docker/base/NAME.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
    python: str
    glibc: str
    packages: tuple[PackageName, ...]
    exclude: tuple[PathPattern, ...] = ()
    include: tuple[PathPattern, ...] = ()

    @property
    def sha256(self) -> str:
        """Identity of what the recipe asks for; comments and order of keys do not count."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BaseLock:
    """The packages that a recipe resolved to.

    Attributes:
        recipe_sha256: of the recipe that was resolved.
        architecture: ``amd64``.
        packages: sorted by name.
    """

    recipe_sha256: str
    architecture: str
    packages: tuple[DebianPackage, ...]

    @property
    def sha256(self) -> str:
        """Identity: recipe, and hash of every package."""
        lines = (f"{p.name} {p.sha256}\n" for p in self.packages)
        return hashlib.sha256("".join((f"{self.recipe_sha256}\n", *lines)).encode()).hexdigest()


def find(name: str) -> tuple[Path, Recipe]:
    """Read a recipe by name or by path.

    Raises:
        UsageError: there is none, or it is malformed.
    """
    folder = resources.docker() / "base"
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.toml")))
        raise UsageError(f"no base recipe '{name}'", fix=f"choose one of {known} or give the path of a .toml file")
    try:
        return path, Recipe.model_validate(tomltext.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise UsageError(refused(error), where=path) from error
    except ValueError as error:  # TOML and UTF-8
        raise UsageError(f"not TOML: {error}", where=path) from error


def lock_path(recipe: Path, architecture: str) -> Path:
    """Where the lock of a recipe lies."""
    return recipe.with_name(f"{recipe.stem}.{architecture}.lock.json")


def load_lock(path: Path) -> BaseLock | None:
    """Read a lock, or None where there is none.

    Raises:
        UsageError: it is malformed.
    """
    if not path.is_file():
        return None
    try:
        body: Any = jsontext.loads(path.read_text(encoding="utf-8"))
        if body.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError("another schema version")
        return TypeAdapter(BaseLock).validate_python(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        line = first_line(error)
        raise UsageError(f"not a base lock: {line}", where=path, fix="run stackb build --update-base") from error


def save_lock(path: Path, lock: BaseLock) -> None:
    """Write a lock; stable bytes."""
    body = {"schema_version": SCHEMA_VERSION, **asdict(lock)}
    atomic_write(path, json.dumps(body, indent=1, sort_keys=True) + "\n")

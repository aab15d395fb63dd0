"""``docker/image.toml``: how images are laid out."""

from __future__ import annotations

import tomllib

from pydantic import BaseModel, ConfigDict, Field

from stack_builder import resources

LAYOUT_VERSION = 2
"""Part of every cache key. Raise it whenever the same inputs would give other bytes."""

EPOCH = 1_735_689_600
"""Time stamp of every file in every layer, and of the image itself: 2025-01-01T00:00:00Z.

Any constant will do. Not 0, because zip tools inside the container refuse years before 1980; not the time of the
build, because equal inputs must give equal bytes.
"""

MAX_LAYERS = 125
"""Engines with a chained layer store refuse more ("max depth exceeded", measured on Docker 20.10)."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PythonSettings(_Model):
    """``[python]``."""

    prefix: str = Field(pattern=r"^(/[a-z0-9._-]+)+$")


class LayerSettings(_Model):
    """``[layers]``: which wheel goes into which layer. Sizes in bytes of the wheel's file."""

    own: int = Field(gt=0)
    shared: int = Field(gt=0, le=32)
    small: int = Field(gt=0)
    small_shared: int = Field(gt=0, le=32)
    low: tuple[str, ...]
    high: tuple[str, ...]


class LinkerSettings(_Model):
    """``[linker]``: directories below site-packages; ``*`` stands for one part of the path."""

    directories: tuple[str, ...]


class ToolkitSettings(_Model):
    """``[toolkit]``: below site-packages."""

    home: str
    links: dict[str, str]


class ImageSettings(_Model):
    """The whole file."""

    python: PythonSettings
    layers: LayerSettings
    linker: LinkerSettings
    toolkit: ToolkitSettings
    environment: dict[str, str]


def load() -> ImageSettings:
    """Read the settings that ship with the tool."""
    return ImageSettings.model_validate(tomllib.loads((resources.docker() / "image.toml").read_text(encoding="utf-8")))

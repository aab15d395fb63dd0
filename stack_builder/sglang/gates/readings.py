"""The readings of ``checks/gates/readings.toml``: which anchors decide about a feature, and what they mean."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stack_builder import resources
from stack_builder.errors import UsageError, refused
from stack_builder.sglang.gates.anchors import Anchor, Kind

GPUS = ("sm_90", "sm_100", "sm_120", "sm_121")


class State(StrEnum):
    """What becomes of a feature that is asked for, or of a default."""

    ACTIVE = "active"
    SILENTLY_OFF = "silently off"
    WARNS_OFF = "warns and off"
    REFUSES = "refuses"
    CRASHES_LATE = "crashes late"
    SLOWER = "slower choice"
    ABSENT = "absent"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """One line."""
        return _MEANINGS[self]


_MEANINGS = {
    State.ACTIVE: "used when asked for, as far as the compute capability decides",
    State.SILENTLY_OFF: "accepted and never used; nothing says so",
    State.WARNS_OFF: "a warning in the log, then off",
    State.REFUSES: "SGLang stops at start",
    State.CRASHES_LATE: "fails when the kernel is built or first used",
    State.SLOWER: "works; this release has a faster choice for this GPU, but does not take it by itself",
    State.ABSENT: "this release does not have it",
    State.UNKNOWN: "the source alone does not tell",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Scoped(_Model):
    """What holds for some GPUs and releases only; for all where it names none."""

    gpus: tuple[str, ...] = ()
    sglang: str = ""

    def applies(self, gpu: str, version: str) -> bool:
        """Whether it is for a GPU and a release."""
        fits = not self.sglang or SpecifierSet(self.sglang, prereleases=True).contains(version)
        return fits and (not self.gpus or gpu in self.gpus)


class AnchorEntry(_Model):
    """An anchor as written."""

    kind: Kind
    files: Annotated[tuple[str, ...], Field(min_length=1)]
    text: str = ""
    symbol: str = ""
    given: dict[str, bool | int | str] = {}
    equals: str | None = None

    def anchor(self) -> Anchor:
        """The anchor meant."""
        return Anchor(self.kind, self.files, self.text, self.symbol, self.given, self.equals)


class Reading(_Scoped):
    """One step: if the anchors are there, this follows.

    Attributes:
        anchor: the place that decides.
        also: places that must stand in the release too.
        true: state where the anchor is true; without it the next reading is asked.
        false: state where it is false.
        unknown: state where the source does not tell.
        gpus: for which GPUs; all where empty.
        sglang: for which releases, where the anchor alone does not tell.
        why: what happens, in a sentence.
        established: ``source`` for what the source shows, ``report`` for what users reported.
    """

    anchor: AnchorEntry
    also: tuple[AnchorEntry, ...] = ()
    true: State | None = None
    false: State | None = None
    unknown: State | None = None
    why: str
    established: Literal["source", "report"] = "source"

    @model_validator(mode="after")
    def _says_something(self) -> Reading:
        if self.true is None and self.false is None and self.unknown is None:
            raise ValueError("a reading without any state")
        SpecifierSet(self.sglang)
        return self


class Instead(_Scoped):
    """What works, for some GPUs and releases."""

    text: str


class Feature(_Model):
    """Something that a launch line asks for, or that SGLang chooses.

    Attributes:
        title: for people.
        requested: forms that ask for it: ``--option``, ``--option=value`` or ``VARIABLE=1``; empty for a choice that
            SGLang makes by itself.
        default: chosen without being asked for, unless one of these forms is given.
        concerns: models that it is about; all where empty.
        ranks: number of GPUs from which on it matters.
        reading: steps, in order; the first that yields a state decides.
        instead: what works.
    """

    title: str
    requested: tuple[str, ...] = ()
    default: bool = False
    concerns: str = ""
    ranks: int = 1
    reading: Annotated[tuple[Reading, ...], Field(min_length=1)]
    instead: tuple[Instead, ...] = ()


def path() -> Path:
    """Where the readings stand."""
    return resources.checks() / "gates" / "readings.toml"


@cache
def load() -> dict[str, Feature]:
    """All features by id, in the order of the file.

    Raises:
        UsageError: the file does not have its form.
    """
    try:
        body = tomllib.loads(path().read_text(encoding="utf-8"))
        return {name: Feature.model_validate(entry) for name, entry in body.items()}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", where=path()) from error
    except ValidationError as error:
        raise UsageError(refused(error), where=path()) from error

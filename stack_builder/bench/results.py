"""What a bench leaves behind: plain frozen data, one JSON document. Comparisons are computed from it, never stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stack_builder import jsontext
from stack_builder.bench.metrics import Figures
from stack_builder.bench.server import ServerFacts
from stack_builder.errors import IntegrityError, UsageError, refused
from stack_builder.files import atomic_write, read_regular
from stack_builder.report.model import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1
MAX_FILE = 256 << 20  # bytes
MAX_LEVEL = 1e6  # clients, or requests per second
_MAX_NUMBER = 1e15  # of any figure, in its unit


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked of ``stackb bench``.

    Attributes:
        api: completions, chat or generate.
        levels: clients of the closed loop, or requests per second of the open one.
        tokens: output tokens of each request.
        open_loop: whether levels are rates.
        requests: of each client in a run (closed loop), or in all (open loop); None if ``seconds`` bounds it.
        seconds: length of a run.
        prompts: builtin, random or a file name.
        seed: of arrivals, random prompts and the bootstrap.
        rounds: planned for each level.
        max_rounds: at most, where the interval straddles 1.
        slo: objective in milliseconds.
        temperature: of sampling.
        connections: ``kept`` alive between requests, or a ``fresh`` one for each, set-up included in its times.
    """

    api: str
    levels: tuple[float, ...]
    tokens: int
    open_loop: bool = False
    requests: int | None = 2
    seconds: float | None = None
    prompts: str = "builtin"
    seed: int = 0
    rounds: int = 1
    max_rounds: int = 1
    slo: Mapping[str, float] = field(default_factory=dict)
    temperature: float = 0.0
    connections: Literal["kept", "fresh"] = "kept"


@dataclass(frozen=True, slots=True)
class Reason:
    """A rule of ``checks/rules/bench.toml`` that a run broke, and what was seen."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one arm at one level.

    Attributes:
        arm: its name.
        level: clients, or requests per second.
        round: 0 is the first; runs of one round are compared.
        order: position among all runs of the bench.
        at: when it began, UTC, ISO 8601.
        figures: what the clients saw.
        running: mean running batch the server reported; None if it does not.
        waiting: mean queue.
        retracted: requests thrown out of memory; None if unknown.
        accept_length: tokens per verify pass; None if unknown or without speculation.
        server_tokens: output tokens by the server's own counter; None if unknown.
        mhz: mean SM clock; None if unknown.
        rejected: why it does not count.
        notes: what to know of it.
    """

    arm: str
    level: float
    round: int
    order: int
    at: str
    figures: Figures
    running: float | None = None
    waiting: float | None = None
    retracted: float | None = None
    accept_length: float | None = None
    server_tokens: float | None = None
    mhz: float | None = None
    rejected: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it counts."""
        return not self.rejected


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm: a server with one configuration.

    Attributes:
        name: as given; the first arm is the baseline.
        url: where it answered.
        facts: what it showed of itself.
        receipt: what started it: stack, patches, options, activity (``stackb serve``'s report), as far as known.
    """

    name: str
    url: str
    facts: ServerFacts = field(default_factory=ServerFacts)
    receipt: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Results:
    """A whole bench.

    Attributes:
        id: unique; ``YYYYMMDDTHHMMSSZ-xxxxxx``.
        started, ended: UTC, ISO 8601.
        settings: what was asked.
        arms: the baseline first.
        runs: in the order they were made; rejected ones included.
        partial: interrupted before its end.
        machine: GPU, driver and so on, as far as known.
        source: ``stackb``, or the tool whose file was imported.
        notes: lines for people.
    """

    id: str
    started: str
    ended: str
    settings: Settings
    arms: tuple[ArmResult, ...]
    runs: tuple[RunResult, ...]
    partial: bool = False
    machine: Mapping[str, Json] = field(default_factory=dict)
    source: str = "stackb"
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def to_json(results: Results, *, indent: int | None = 1) -> str:
    """Write results as JSON; one line with ``indent=None``."""
    return jsontext.dumps(results, indent=indent, compact=True)


def from_json(text: str | bytes, where: object = None) -> Results:
    """Read results back.

    Raises:
        UsageError: not results, or of another schema version.
    """
    from pydantic import ValidationError

    try:
        results = _adapter().validate_python(jsontext.loads(text))
    except ValidationError as error:
        fix = "give the file that stackb bench --output wrote, or import another tool's with stackb history --import"
        raise UsageError(f"not results of stackb bench: {refused(error)}", where=where, fix=fix) from error
    except ValueError as error:
        raise UsageError(f"not results of stackb bench: {error}", where=where) from error
    if results.schema_version != SCHEMA_VERSION:
        raise UsageError(f"results of schema version {results.schema_version}, not {SCHEMA_VERSION}", where=where)
    check(results, where)
    return results


def check(results: Results, where: object = None) -> None:
    """Refuse what no bench can have measured: comparisons and charts take logarithms and ratios of these numbers.

    Raises:
        UsageError: no arm, a run of an arm that is not there, or a number out of bounds.
    """
    if not results.arms or not {run.arm for run in results.runs} <= {arm.name for arm in results.arms}:
        raise UsageError("no results of a bench: runs of no known arm", where=where)
    levels = (*results.settings.levels, *(run.level for run in results.runs))
    wrong = [level for level in levels if not 0 < level <= MAX_LEVEL]
    numbers = _numbers((*results.runs, replace(results.settings, seed=0)))  # a seed is any number
    wrong += [number for number in numbers if not 0 <= number <= _MAX_NUMBER]
    if wrong:
        raise UsageError(f"no results of a bench: {wrong[0]:g} is no figure of one", where=where)


def _numbers(value: object) -> Iterator[float]:
    """Every number in a run."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    elif is_dataclass(value):
        for part in fields(value):
            yield from _numbers(getattr(value, part.name))


def read(path: Path) -> Results:
    """Read a results file.

    Raises:
        UsageError: no such file, or not results.
    """
    if path.is_dir():
        raise UsageError("is a folder", where=path, fix="give the file that stackb bench --output wrote")
    if not path.exists():
        raise UsageError("no such file", where=path)
    try:
        data = read_regular(path, MAX_FILE)
    except IntegrityError as error:
        raise UsageError(error.what, where=path, fix="give the file that stackb bench --output wrote") from error
    return from_json(data, path)


def leave_out(results: Results, names: Collection[str]) -> Results:
    """Results without some of their arms.

    Raises:
        UsageError: there is no arm of that name.
    """
    for name in names:
        if name not in {arm.name for arm in results.arms}:
            known = ", ".join(arm.name for arm in results.arms)
            raise UsageError("the results have no such arm", where=name, fix=f"name one of {known}")
    arms = tuple(arm for arm in results.arms if arm.name not in names)
    return replace(results, arms=arms, runs=tuple(run for run in results.runs if run.arm not in names))


def write(results: Results, path: Path) -> None:
    """Write a results file in one step."""
    atomic_write(path, to_json(results))


@cache
def _adapter() -> TypeAdapter[Results]:
    from pydantic import TypeAdapter

    return TypeAdapter(Results)


def level_text(level: float) -> str:
    """Write a level without a needless ``.0``."""
    return f"{level:g}"

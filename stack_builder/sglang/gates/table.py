"""The table of one release: feature and GPU -> what becomes of it, why, and where the source says so."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass

from stack_builder import resources
from stack_builder.sglang import cache
from stack_builder.sglang.gates import readings
from stack_builder.sglang.gates.anchors import Finder
from stack_builder.sglang.gates.capability import Conditions, Gpu
from stack_builder.sglang.gates.readings import GPUS, Feature, State
from stack_builder.sglang.source import SourceTree


@dataclass(frozen=True, slots=True)
class Gate:
    """What becomes of a feature on a GPU.

    Attributes:
        state: the outcome.
        why: what happens, in a sentence.
        at: ``file:line (symbol)`` that shows it; empty for an absent feature.
        condition: text of the test there.
        established: ``source`` or ``report``.
    """

    state: State
    why: str = ""
    at: str = ""
    condition: str = ""
    established: str = "source"


@dataclass(frozen=True, slots=True)
class GateTable:
    """All gates of a release.

    Attributes:
        version: of SGLang.
        gates: feature -> GPU -> gate.
        recorded: read from ``checks/gates/recorded.toml``, not from the source at hand.
    """

    version: str
    gates: dict[str, dict[str, Gate]]
    recorded: bool = False

    def gate(self, feature: str, gpu: str) -> Gate:
        """The gate of a feature; unknown where the table has none."""
        return self.gates.get(feature, {}).get(gpu, Gate(State.UNKNOWN, "no reading for this GPU"))

    def instead(self, feature: str, gpu: str) -> tuple[str, ...]:
        """What works in its place."""
        return tuple(i.text for i in readings.load()[feature].instead if i.applies(gpu, self.version))


def read(tree: SourceTree, gpus: tuple[str, ...] = GPUS) -> GateTable:
    """Derive the table from the source of a release; kept in the cache."""
    kind = f"gates-{'-'.join(gpus)}"
    return cache.through(tree, kind, lambda source: derive(source, gpus), _to_json, _from_json)


def derive(tree: SourceTree, gpus: tuple[str, ...] = GPUS) -> GateTable:
    """Derive the table, without the cache."""
    finder = Finder(Conditions(tree))
    table = {
        name: {gpu: _gate(finder, feature, gpu, tree.version) for gpu in gpus}
        for name, feature in readings.load().items()
    }
    return GateTable(tree.version, table)


def _gate(finder: Finder, feature: Feature, gpu: str, version: str) -> Gate:
    capability = Gpu.parse(gpu)
    seen = False
    for reading in feature.reading:
        if not reading.applies(gpu, version):
            continue
        if any(finder.read(entry.anchor(), capability) is None for entry in reading.also):
            continue
        found = finder.read(reading.anchor.anchor(), capability)
        if found is None:
            continue
        seen = True
        value, place = found
        state = reading.unknown if value is None else reading.true if value else reading.false
        if state is not None:
            return Gate(state, reading.why, str(place), place.condition, reading.established)
    if seen:
        return Gate(State.ACTIVE, "no test of the source stands in its way")
    return Gate(State.ABSENT, "no reading finds it in this release")


def recorded(version: str) -> GateTable | None:
    """The recorded table of a release, for when its source is not at hand; None where none was recorded."""
    body = _recorded()
    gates = {
        feature: {gpu: Gate(State(entry[0]), entry[1], entry[2]) for gpu, entry in versions[version].items()}
        for feature, versions in body.items()
        if version in versions
    }
    return GateTable(version, gates, recorded=True) if gates else None


def _recorded() -> dict[str, dict[str, dict[str, list[str]]]]:
    path = resources.checks() / "gates" / "recorded.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _to_json(table: GateTable) -> object:
    return asdict(table)


def _from_json(body: object) -> GateTable:
    assert isinstance(body, dict)
    gates = {
        feature: {gpu: Gate(**{**gate, "state": State(gate["state"])}) for gpu, gate in by_gpu.items()}
        for feature, by_gpu in body["gates"].items()
    }
    return GateTable(body["version"], gates, body["recorded"])

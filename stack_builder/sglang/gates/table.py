"""The table of one release: feature and GPU -> what becomes of it, why, and where the source says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

from stack_builder import resources
from stack_builder.sglang import cache
from stack_builder.sglang.gates import readings
from stack_builder.sglang.gates.anchors import Finder
from stack_builder.sglang.gates.capability import Conditions
from stack_builder.sglang.gates.readings import GPUS, Feature, Reading, State
from stack_builder.sglang.source import SourceTree
from stack_builder.stack.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Gate:
    """What becomes of a feature on a GPU.

    Attributes:
        state: the outcome.
        why: what happens, in a sentence.
        at: ``file:line (symbol)`` that shows it; empty for an absent feature.
        condition: text of the test there.
        established: ``source`` or ``report``.
        step: number of the reading that decided, from 1; 0 where none did.
    """

    state: State
    why: str = ""
    at: str = ""
    condition: str = ""
    established: str = "source"
    step: int = 0


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
    """Derive the table from the source of a release; kept in the cache.

    Raises:
        UsageError: a GPU is none.
    """
    for gpu in gpus:
        Gpu.parse(gpu)
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
    passed = None
    for step, reading in enumerate(feature.reading, 1):
        if not reading.applies(gpu, version):
            continue
        if any(finder.read(entry.anchor(), capability) is None for entry in reading.also):
            continue
        found = finder.read(reading.anchor.anchor(), capability)
        if found is None:
            continue
        value, place = found
        state = reading.unknown if value is None else reading.true if value else reading.false
        if state is not None:
            return Gate(state, _why(reading, state), str(place), place.condition, reading.established, step)
        passed = place
    if passed is not None:
        return Gate(State.ACTIVE, _PASSED, str(passed), passed.condition)
    return Gate(State.ABSENT, _ABSENT)


def _why(reading: Reading, state: State) -> str:
    """A reading says what happens where its anchor is true; a test that lets the GPU pass needs no other words."""
    if state is State.UNKNOWN and state is not reading.true:
        return f"{state.meaning}: {reading.why}"
    return _PASSED if state is State.ACTIVE and state is not reading.true else reading.why


_PASSED = "the test in the source lets this GPU pass"
_ABSENT = "nothing of it is found in this release"


def recorded(version: str) -> GateTable | None:
    """The recorded table of a release, for when its source is not at hand; None where none was recorded."""
    gates = {
        name: {gpu: _recalled(feature, *entry) for gpu, entry in _recorded()[name][version].items()}
        for name, feature in readings.load().items()
        if version in _recorded().get(name, {})
    }
    return GateTable(version, gates, recorded=True) if gates else None


def _recalled(feature: Feature, state: str, step: int, at: str) -> Gate:
    if step:
        reading = feature.reading[step - 1]
        return Gate(State(state), _why(reading, State(state)), at, "", reading.established, step)
    return Gate(State(state), _ABSENT if state == State.ABSENT else _PASSED, at)


@lru_cache
def _recorded() -> dict[str, dict[str, dict[str, tuple[str, int, str]]]]:
    return resources.table("gates", "recorded.toml")


def _to_json(table: GateTable) -> object:
    return asdict(table)


def _from_json(body: object) -> GateTable:
    assert isinstance(body, dict)
    gates = {
        feature: {gpu: Gate(**{**gate, "state": State(gate["state"])}) for gpu, gate in by_gpu.items()}
        for feature, by_gpu in body["gates"].items()
    }
    return GateTable(body["version"], gates, body["recorded"])

"""Everything that launch lines are checked against, of one release."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stack_builder.sglang import cache, options, speculation
from stack_builder.sglang.options import Option, OptionTable
from stack_builder.sglang.source import SourceTree
from stack_builder.sglang.speculation import Speculation


@dataclass(frozen=True, slots=True)
class Release:
    """What one release takes and does.

    Attributes:
        version: of SGLang.
        options: of ``sglang.launch_server``.
        speculation: automatic values and limits.
    """

    version: str
    options: OptionTable
    speculation: Speculation


def read(tree: SourceTree) -> Release:
    """Read a release; kept in the cache by the tree's identity.

    Raises:
        SourceError: it cannot be read.
    """
    return cache.through(tree, "release", _read, _to_json, _from_json)


def _read(tree: SourceTree) -> Release:
    return Release(tree.version, options.read(tree), speculation.read(tree))


def _to_json(release: Release) -> object:
    return {
        "version": release.version,
        "options": [asdict(option) for option in release.options.options],
        "speculation": asdict(release.speculation),
    }


def _from_json(body: object) -> Release:
    assert isinstance(body, dict)
    found = body["speculation"]
    rows = {key: tuple(steps) for key, steps in found["adaptive_rows"].items()}
    lists = {key: tuple(found[key]) for key in ("tree_backends", "adaptive_excludes", "environment")}
    table = OptionTable(body["version"], tuple(map(_option, body["options"])))
    return Release(body["version"], table, Speculation(**{**found, **lists, "adaptive_rows": rows}))


def _option(body: dict[str, Any]) -> Option:
    choices = None if body["choices"] is None else tuple(body["choices"])
    return Option(**{**body, "names": tuple(body["names"]), "unknown": tuple(body["unknown"]), "choices": choices})

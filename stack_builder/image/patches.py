"""The layer of a stack's patches: the files that a series changes, and bytecode to match.

It lies above the wheels, whose layers stay as they are for every stack. Unchecked bytecode of the unpatched module,
down there, would win over the patched source; so the patched modules are compiled too.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack_builder.errors import UsageError
from stack_builder.image import bytecode
from stack_builder.image.contents import Contents, InstalledFile
from stack_builder.image.layers import LayerWriter, WheelSource, bytecode_paths, record_of
from stack_builder.image.rootfs import Rootfs
from stack_builder.image.stream import Written
from stack_builder.image.tarball import EXECUTABLE, FILE
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Patch
from stack_builder.patchset.plan import patched_files
from stack_builder.patchset.wheel import from_wheel
from stack_builder.wheels.archive import WheelArchive


@dataclass(frozen=True, slots=True)
class Patching:
    """A series and what it is applied to.

    Attributes:
        patches: in the order of the series.
        sources: the wheels that they change, by distribution name.
        python: ``3.11``.
        rootfs: compiles the patched modules; None for no bytecode.
    """

    patches: tuple[Patch, ...]
    sources: Mapping[str, WheelSource]
    python: str
    rootfs: Rootfs | None


def distributions(patches: Sequence[Patch], known: Mapping[str, object]) -> list[str]:
    """Names of the distributions that a series changes, sorted.

    Raises:
        UsageError: one is not part of the stack.
    """
    for patch in patches:
        if patch.spec.distribution not in known:
            what = f"patch '{patch.id}' is unused: the stack has no {patch.spec.distribution}"
            raise UsageError(what, where="stack.toml", fix="take it out of the series")
    return sorted({patch.spec.distribution for patch in patches})


def write_patches(sink: BinaryIO, patching: Patching) -> Written:
    """Write the layer.

    Raises:
        IntegrityError: an operation gives other bytes than the patch records.
        UsageError: a patch is not needed in this version, or does not fit it.
    """
    layer = LayerWriter(sink)
    series = defaultdict(list)
    for patch in patching.patches:
        series[patch.spec.distribution].append(patch)
    for name in sorted(series):
        source = patching.sources[name]
        files = _patched(source, series[name])
        modes = {file.path: file.mode for file in source.contents.files}
        for path in sorted(files):
            layer.bytes(path, files[path], modes.get(path, FILE) & EXECUTABLE | FILE)
        if patching.rootfs:
            _add_bytecode(layer, files, source.contents, patching)
    return layer.finish()


def _patched(source: WheelSource, patches: Sequence[Patch]) -> dict[str, bytes]:
    """What the series changes or adds, by path in the image."""
    site = source.contents.record.rsplit("/", 2)[0]
    with source.path.open("rb") as file:
        wheel = from_wheel(WheelArchive(file, source.filename))
        record = record_of(source, bytecode_paths(source))  # as the wheel's layer has it, not as the wheel has it

        def read(path: str) -> bytes:
            return record if path == wheel.record_path else wheel.read(path)

        installed = Distribution(wheel.name, wheel.version, wheel.dist_info, read)
        return {f"{site}/{path}": data for path, data in patched_files(installed, patches).items()}


def _add_bytecode(layer: LayerWriter, files: Mapping[str, bytes], contents: Contents, patching: Patching) -> None:
    modules = {path: data for path, data in files.items() if path.endswith(".py")}
    if not modules or patching.rootfs is None:
        return
    with tempfile.TemporaryDirectory(prefix="stackb-patched-") as scratch:
        patched, pack = Path(scratch) / "patched.zip", Path(scratch) / "pack.zip"
        with zipfile.ZipFile(patched, "w") as archive:
            for path, data in sorted(modules.items()):
                archive.writestr(path, data)
        rows = tuple(InstalledFile(path, FILE, len(data), "", path) for path, data in sorted(modules.items()))
        only = Contents(contents.name, contents.version, contents.record, rows)
        bytecode.compile_wheel(patched, only, patching.python, patching.rootfs, pack)
        with pack.open("rb") as file:
            opened = WheelArchive(file, "bytecode of patched modules")
            for entry in opened.files():
                layer.entry(entry.name, FILE, opened, entry, None)

"""The two layers that come from no wheel: the empty environment, and what makes its libraries and tools found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from posixpath import basename, dirname
from typing import BinaryIO

from stack_builder.errors import IntegrityError
from stack_builder.image.contents import Place
from stack_builder.image.layers import LayerWriter
from stack_builder.image.stream import Written

_VERSIONED = re.compile(r"(?P<plain>lib[^/]+\.so)\.[0-9]+")


def write_skeleton(sink: BinaryIO, place: Place) -> Written:
    """Write the layer of the empty environment: interpreter and ``pyvenv.cfg``, as ``python -m venv`` makes them."""
    layer = LayerWriter(sink)
    layer.symlink(f"{place.bin}/python", "python3")
    layer.symlink(f"{place.bin}/python3", f"/usr/bin/python{place.python}")
    layer.symlink(f"{place.bin}/python{place.python}", "python3")
    config = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {place.python}\n"
    layer.bytes(f"{place.prefix}/pyvenv.cfg", config.encode())
    return layer.finish()


def write_finish(sink: BinaryIO, links: Iterable[tuple[str, str]], files: Iterable[tuple[str, bytes]]) -> Written:
    """Write the topmost layer: links as path and target, files as path and content."""
    layer = LayerWriter(sink)
    for path, target in links:
        layer.symlink(path, target)
    for path, data in files:
        layer.bytes(path, data)
    return layer.finish()


def toolkit_links(paths: Iterable[str], home: str, links: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Links that complete the CUDA toolkit for build systems: ``lib64``, and ``libX.so`` for each ``libX.so.13``.

    Args:
        paths: files of the image.
        home: path of the toolkit.
        links: further ones, relative to ``home``.

    Raises:
        IntegrityError: a wheel has something else at such a place.
    """
    existing = {path for path in paths if path.startswith(f"{home}/")}
    if not existing:
        return ()
    made = {f"{home}/{path}": target for path, target in links.items()}
    for path in existing:
        match = _VERSIONED.fullmatch(basename(path))
        if match and dirname(path) == f"{home}/lib" and f"{home}/lib/{match['plain']}" not in existing:
            made[f"{home}/lib/{match['plain']}"] = basename(path)
    for path in made:
        if any(other.startswith(f"{path}/") for other in existing):
            raise IntegrityError("a wheel has a directory where a link must be", where=f"/{path}")
    return tuple(sorted(made.items()))

"""Bytecode for wheels, made by the image's own Python, kept per wheel.

Without it every process compiles what it imports anew: ``import torch`` takes 4.6 s in place of 2.5 s. It is compiled
by the base's Python because another patch release writes other bytes (7 of 8,516 files differed between 3.11.2 and
3.11.7), and compressed by the same Python: its zlib is pinned by the lock as part of the base, so the compressor is an
input and not an accident of the building machine.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from posixpath import basename, dirname

from stack_builder.errors import MachineError
from stack_builder.files import atomic_writer
from stack_builder.image.contents import Contents
from stack_builder.image.rootfs import Rootfs

_PROGRAM = (Path(__file__).parent / "in_base" / "compile_wheel.py").read_text(encoding="utf-8")
PROGRAM_SHA256 = hashlib.sha256(_PROGRAM.encode()).hexdigest()


def modules(contents: Contents, python: str) -> list[tuple[str, str, str]]:
    """List what to compile: entry of the wheel, path in the image, path of the bytecode.

    Only modules below ``site-packages``; scripts are not imported.
    """
    tag = f"cpython-{python.replace('.', '')}"
    site = f"/lib/python{python}/site-packages/"
    return [
        (file.entry, file.path, f"{dirname(file.path)}/__pycache__/{basename(file.path)[:-3]}.{tag}.pyc")
        for file in contents.files
        if file.entry and file.path.endswith(".py") and site in file.path
    ]


def compile_wheel(wheel: Path, contents: Contents, python: str, rootfs: Rootfs, pack: Path) -> None:
    """Compile a wheel's modules, unless ``pack`` holds them already.

    Args:
        wheel: the verified file.
        contents: what it installs.
        python: ``3.11``.
        rootfs: the unpacked base.
        pack: where the zip of ``.pyc`` files, by their path in the image, is kept; its name must be a function of the
            wheel, the base and :data:`PROGRAM_SHA256`.

    Raises:
        MachineError: the base's Python cannot be run, or dies on this wheel.
    """
    if pack.is_file():
        return
    job = [(entry, f"/{path}", target) for entry, path, target in modules(contents, python)]
    with wheel.open("rb") as source, atomic_writer(pack) as result:
        numbers = [str(source.fileno()), str(result.fileno())]
        argv = [f"/usr/bin/python{python}", "-S", "-s", "-B", "-c", _PROGRAM, *numbers]
        try:
            rootfs.run(argv, stdin=json.dumps(job).encode(), files=[source, result])
        except MachineError as error:
            raise MachineError(error.what, where=f"{wheel.name}: {error.where}", fix=error.fix) from error

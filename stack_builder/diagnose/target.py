"""TARGET: what a command is asked to look at. Typed, not guessed.

``stack:NAME``, ``venv:DIR``, ``python:EXE``, ``image:REF``, ``oci:DIR|TAR``, ``wheels:DIR``. A bare path or name is
taken only where it has exactly one reading.

The help of most commands quotes this module, so what reads stack files, and loads slowly, is imported where it is used.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from stack_builder import report
from stack_builder.errors import UsageError

FORMS = {
    "stack": "stack:NAME",
    "venv": "venv:DIR",
    "python": "python:EXE",
    "image": "image:REF",
    "oci": "oci:DIR|TAR",
    "wheels": "wheels:DIR",
}
HELP = f"What to check: {', '.join(FORMS.values())}; a bare path or name where it has only one reading."

# A tag or a digest makes a name an image reference; without one it could as well be a mistyped path.
# Grammar: github.com/distribution/reference, reduced to what a person types.
_IMAGE = re.compile(r"[a-z0-9][\w.\-/]*(:\d+/[\w.\-/]+)?(:[\w][\w.-]{0,127}|@sha256:[0-9a-f]{64})")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A parsed TARGET.

    Attributes:
        kind: a key of :data:`FORMS`.
        value: the name, reference or path, as given.
    """

    kind: str
    value: str

    @property
    def path(self) -> Path:
        """The value as a path, for the kinds that name one."""
        return Path(self.value).expanduser()

    def as_report_target(self) -> report.Target:
        """The form that reports carry."""
        return report.Target(self.kind, self.value)


def parse(
    text: str | None, environ: Mapping[str, str] = os.environ, *, kinds: Collection[str] = tuple(FORMS)
) -> TargetSpec:
    """Read a TARGET; None stands for the active virtual environment, else ``./.venv``, conda's, or the default stack.

    Args:
        text: as typed.
        environ: may name the active environment.
        kinds: keys of :data:`FORMS` that the command takes.

    Raises:
        UsageError: an unknown kind, nothing there, no reading or several; lists the readings.
    """
    if text is None:
        return _default(environ)
    forms = " or ".join(FORMS[kind] for kind in kinds)
    kind, colon, value = text.partition(":")
    if colon and kind in FORMS:
        if kind not in kinds:
            raise UsageError(f"this command takes no {kind}:", where=text, fix=f"write {forms}")
        if not value:
            raise UsageError(f"'{text}' names nothing", fix=f"write {FORMS[kind]}")
        return _existing(TargetSpec(kind, value))
    if colon and not Path(text).exists() and (meant := _meant(kind)):
        raise UsageError(f"no kind of target '{kind}:'", where=text, fix=f"did you mean {meant}:{value}?")
    readings = [reading for reading in _readings(text) if reading.kind in kinds]
    if len(readings) == 1:
        return readings[0]
    if readings:
        choices = " or ".join(f"{reading.kind}:{reading.value}" for reading in readings)
        raise UsageError(f"'{text}' can be read in {len(readings)} ways", fix=f"write {choices}")
    path = Path(text).expanduser()
    if (fitting := _form_for(path)) is not None and fitting.kind in kinds:
        raise UsageError(f"'{text}' is part of what can be checked", fix=f"write {fitting.kind}:{fitting.value}")
    what = "is nothing that can be checked" if Path(text).exists() else "is no file, folder, stack or tagged image"
    raise UsageError(f"'{text}' {what}", fix=f"write {forms}")


def _meant(kind: str) -> str | None:
    """The kind that a word before a colon was meant to be; other words can be names of images."""
    if kind == "docker":  # as build --output has it
        return "image"
    return next(iter(get_close_matches(kind, FORMS, n=1, cutoff=0.75)), None)


def _default(environ: Mapping[str, str]) -> TargetSpec:
    """The target of a command that names none.

    Raises:
        UsageError: an environment is active that serves nothing, such as the one that stackb itself runs in.
    """
    active = environ.get("VIRTUAL_ENV")
    target = _existing(TargetSpec("venv", active)) if active else TargetSpec("venv", ".venv")
    from stack_builder.stack import spec

    conda = environ.get("CONDA_PREFIX")
    if not active and conda and not _is_venv(target.path) and (Path(conda) / "bin/python").is_file():
        return _existing(TargetSpec("python", f"{conda}/bin/python"))
    if not _is_venv(target.path):
        return TargetSpec("stack", spec.DEFAULT_STACK)
    if not _may_serve(target.path):
        what = "no TARGET was given, and this environment holds neither torch nor SGLang"
        raise UsageError(what, where=target.value, fix=f"name one, such as stack:{spec.DEFAULT_STACK} or venv:DIR")
    return target


def _may_serve(venv: Path) -> bool:
    """Whether an environment holds torch or SGLang, or sees packages from elsewhere."""
    if re.search(r"system-site-packages\s*=\s*true", (venv / "pyvenv.cfg").read_text(errors="replace"), re.IGNORECASE):
        return True
    wanted = ("torch-*.dist-info", "sglang-*.dist-info", "torch", "sglang")
    # a list, so that every folder that was opened is closed
    return any(list(venv.glob(f"lib*/python3*/site-packages/{name}")) for name in wanted)


def _existing(target: TargetSpec) -> TargetSpec:
    """Check that a typed TARGET is what its kind says."""
    path = target.path
    if target.kind == "stack":
        from stack_builder.stack import spec

        spec.find(target.value)
    elif target.kind == "image":
        if not _IMAGE.fullmatch(target.value) and not re.fullmatch(r"[a-z0-9][\w.\-/]*", target.value):
            raise UsageError(f"'{target.value}' is no image reference", fix="write image:NAME:TAG")
    elif not path.exists():
        raise UsageError("no such file or directory", where=path, fix=f"name one that exists, as {FORMS[target.kind]}")
    elif target.kind == "venv" and not _is_venv(path):
        raise UsageError("not a virtual environment: it has no pyvenv.cfg", where=path, fix=_instead(target))
    elif target.kind == "python" and not (path.is_file() and _PYTHON.fullmatch(path.name)):
        raise UsageError("not a Python interpreter", where=path, fix=_instead(target))
    elif target.kind == "oci" and not _is_oci(path):
        raise UsageError("neither an OCI layout nor an image archive", where=path, fix=_instead(target))
    elif target.kind == "wheels" and not _has_wheels(path):
        raise UsageError("holds no wheels", where=path, fix=_instead(target))
    return target


def _instead(target: TargetSpec) -> str:
    """Say which kind would fit."""
    others = [reading for reading in _readings(target.value) if reading.kind != target.kind]
    if not others and (fitting := _form_for(target.path)) is not None:
        others = [fitting]
    if others:
        return f"write {' or '.join(f'{other.kind}:{other.value}' for other in others)}"
    return f"name one, as {FORMS[target.kind]}"


def _form_for(path: Path) -> TargetSpec | None:
    """The target that a path belongs to, where it is none itself: a wheel's folder, the environment around a file."""
    if not path.exists():
        return None
    if path.suffix == ".whl":
        return TargetSpec("wheels", str(path.parent))
    for folder in (path, *path.absolute().parents):
        if _is_venv(folder):
            return TargetSpec("venv", str(folder))
        if (folder / "conda-meta").is_dir() and (folder / "bin/python").is_file():
            return TargetSpec("python", f"{folder}/bin/python")
    return None


def _readings(text: str) -> list[TargetSpec]:
    path = Path(text).expanduser()
    found = []
    if _is_stack(text):
        found.append("stack")
    if _is_venv(path):
        found.append("venv")
    if path.is_file() and os.access(path, os.X_OK) and _PYTHON.fullmatch(path.name):
        found.append("python")
    if path.exists():
        if _is_oci(path):
            found.append("oci")
        if _has_wheels(path):
            found.append("wheels")
    elif _IMAGE.fullmatch(text):
        found.append("image")
    return [TargetSpec(kind, text) for kind in found]


def _is_stack(text: str) -> bool:
    from stack_builder.stack import spec

    try:
        spec.find(text)
    except UsageError:
        return False
    return True


def _is_venv(path: Path) -> bool:
    return (path / "pyvenv.cfg").is_file()


def _is_oci(path: Path) -> bool:
    if path.is_dir():
        return (path / "oci-layout").is_file()
    return path.is_file() and tarfile.is_tarfile(path)


def _has_wheels(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.whl"))

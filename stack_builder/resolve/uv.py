"""uv as the resolver: a throw-away project that holds the stack's requirements, answered as a PEP 751 lock.

uv writes URL, size, hash and upload time of every wheel that fits the platform, so that choosing one per package
needs no further request.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename

from stack_builder.errors import MachineError, StackbError
from stack_builder.progress import Progress, Silent
from stack_builder.resolve import process
from stack_builder.resolve.model import Pin, Request

_TIMEOUT = 900.0  # seconds; a cold resolution of 210 packages takes ten
_PROJECT = "stack-toml"  # the project's name in uv's explanations

# Where the index is, how to reach it, where uv caches: what a user configures for a machine. Nothing else gets through.
_KEEP = frozenset(
    f"UV_{name}"
    for name in (
        "CACHE_DIR",
        "DEFAULT_INDEX",
        "EXTRA_INDEX_URL",
        "HTTP_CONNECT_TIMEOUT",
        "HTTP_RETRIES",
        "HTTP_TIMEOUT",
        "INDEX",
        "INDEX_URL",
        "INSECURE_HOST",
        "KEYRING_PROVIDER",
        "LINK_MODE",
        "NATIVE_TLS",
        "NO_CACHE",
        "OFFLINE",
        "SYSTEM_CERTS",
    )
)
_UNAUTHORISED = re.compile(r"could not be queried due to a lack of valid authentication credentials")
_UNREACHABLE = re.compile(r"Failed to fetch|error sending request|client error \(Connect\)|tcp connect error|timed out")


@dataclass(frozen=True)
class Uv:
    """The ``uv`` that is installed beside stackb.

    Args:
        progress: where uv's own explanation of a conflict goes.
        offline: use uv's cache only.
    """

    progress: Progress = field(default_factory=Silent)
    offline: bool = False

    @cached_property
    def _executable(self) -> str:
        from uv import find_uv_bin

        try:
            return find_uv_bin()
        except FileNotFoundError as error:
            raise MachineError(
                "uv is not installed", fix="install stackb again, or use --resolver pip-tools"
            ) from error

    @cached_property
    def identity(self) -> str:
        """See :class:`~stack_builder.resolve.model.Resolver`."""
        from importlib.metadata import version

        return f"uv {version('uv')}"

    def resolve(self, request: Request) -> tuple[Pin, ...]:
        """See :class:`~stack_builder.resolve.model.Resolver`."""
        with tempfile.TemporaryDirectory(prefix="stackb-uv-") as folder:
            project = Path(folder)
            (project / "pyproject.toml").write_text(_pyproject(request), encoding="utf-8")
            answer = project / "pylock.toml"
            if request.prefer:
                answer.write_text(_preferences(request), encoding="utf-8")
            done = process.run(
                "uv",
                [self._executable, *self._arguments(request)],
                cwd=project,
                environment=_environment(),
                timeout=_TIMEOUT,
            )
            if done.returncode != 0:
                raise self._failure(done.stderr)
            return _pins(answer.read_text(encoding="utf-8"), request)

    def _arguments(self, request: Request) -> list[str]:
        target = request.target
        return [
            *("pip", "compile", "pyproject.toml", "--quiet", "--no-header"),
            *("--python", sys.executable, "--python-version", target.python),
            *("--python-platform", f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}"),
            *("--only-binary", ":all:", "--generate-hashes"),
            *("--format", "pylock.toml", "--output-file", "pylock.toml"),
            *(("--offline",) if self.offline else ()),
        ]

    def _failure(self, explanation: str) -> StackbError:
        for line in explanation.strip().splitlines():
            self.progress.note(f"uv: {line}")
        if _UNAUTHORISED.search(explanation):  # for uv a package that it may not look for is one that is not there
            fix = "give the index's credentials in its URL or in ~/.netrc"
            return MachineError("an index does not answer without valid credentials", where="stack.toml", fix=fix)
        if "No solution found" in explanation:
            return process.unsatisfiable(conflict(explanation))
        first = next((line for line in explanation.splitlines() if line.startswith("error: ")), "error: it failed")
        if _UNREACHABLE.search(explanation):
            causes = re.findall(r"(?:cause|Caused by): (.*)", explanation)
            return MachineError(
                f"uv cannot reach an index: {causes[0] if causes else first}",
                fix="check the network and the configured index, or use --offline with a filled cache",
            )
        return MachineError(f"uv failed: {first.removeprefix('error: ')}", fix="see its own words above")


def _environment() -> dict[str, str]:
    """Only the variables of ``_KEEP``, and the default index of a configuration file that was named.

    That file is not passed on: for uv it takes the place of the throw-away project's settings, overrides among them.
    """
    environment = process.inherited("UV_", _KEEP)
    if os.environ.get("UV_CONFIG_FILE") and "UV_DEFAULT_INDEX" not in environment:
        from stack_builder.wheels.index import configured_default  # loads an HTTP client

        environment["UV_DEFAULT_INDEX"] = configured_default()
    return environment


def conflict(explanation: str) -> str:
    """Name the conflict at the root of uv's explanation: the last premises, without the chain in between."""
    text = " ".join(explanation.replace("cause:", " ").split())
    steps = re.findall(r"[Bb]ecause (.*?), we can conclude that ", text)
    joined = ", and ".join(dict.fromkeys([steps[0], steps[-1]])) if steps else text
    return joined.replace(f"{_PROJECT} depends on", "stack.toml requires")


def _pyproject(request: Request) -> str:
    """The throw-away project. Packages with an index of their own become roots: uv heeds sources only for these."""
    spec = request.spec
    roots = spec.roots()
    served = [name for index in spec.index for name in index.packages]
    roots += [name for name in served if name not in spec.requires]
    lines = [
        "[project]",
        f'name = "{_PROJECT}"',
        'version = "0"',
        f'requires-python = "=={spec.stack.python}.*"',
        f"dependencies = {json.dumps(roots)}",
        "[tool.uv]",
        f"override-dependencies = {json.dumps([f'{o.package}{o.version}' for o in spec.override])}",
    ]
    if spec.stack.exclude_newer is not None:
        # uv excludes what was uploaded at or after an instant; the stack file names the last day that counts.
        lines.append(f'exclude-newer = "{spec.stack.exclude_newer + timedelta(days=1)}T00:00:00Z"')
        # Explicit indexes give no upload times, and uv would pass over everything they serve.
        lines.append("[tool.uv.exclude-newer-package]")
        lines += [f"{name} = false" for name in served]
    for index in spec.index:
        lines += ["[[tool.uv.index]]", f"name = {json.dumps(index.name)}", f"url = {json.dumps(index.url)}"]
        lines.append("explicit = true")
    lines.append("[tool.uv.sources]")
    lines += [f"{name} = {{ index = {json.dumps(request.index_of(name))} }}" for name in served]
    return "\n".join(lines) + "\n"


def _preferences(request: Request) -> str:
    """The lock as it stands, as far as uv reads one to keep versions: names and versions."""
    lines = ['lock-version = "1.0"', 'created-by = "stackb"']
    for name, version in sorted(request.prefer.items()):
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
        lines.append(f'wheels = [{{ name = "{wheel}", path = "{wheel}", hashes = {{ sha256 = "{"0" * 64}" }} }}]')
    return "\n".join(lines) + "\n"


def _pins(pylock: str, request: Request) -> tuple[Pin, ...]:
    try:
        packages = tomllib.loads(pylock).get("packages", [])
        return tuple(sorted((_pin(package, request) for package in packages), key=lambda pin: pin.name))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise MachineError(f"uv wrote a lock of an unknown form: {error!r}", fix="use --resolver pip-tools") from error


def _pin(package: dict[str, Any], request: Request) -> Pin:
    name = canonicalize_name(package["name"])
    files = dict(_wheels(package))
    chosen = request.target.best(files)
    if chosen is None:
        raise MachineError(
            f"{name} {package['version']} has no wheel for {request.target.machine} with glibc {request.target.glibc}",
            fix=f"pin another version of {name} in [requires]",
        )
    wheel = files[chosen]
    uploaded = wheel.get("upload-time")
    return Pin(
        name=name,
        version=str(parse_wheel_filename(chosen)[1]),
        filename=chosen,
        sha256=wheel.get("hashes", {}).get("sha256"),
        size=wheel.get("size"),
        index=request.index_of(name),
        uploaded=uploaded.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(uploaded, datetime) else None,
        url=wheel["url"],
    )


def _wheels(package: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for wheel in package.get("wheels", []):
        yield wheel.get("name") or unquote(urlsplit(wheel["url"]).path.rsplit("/", 1)[-1]), wheel

"""Arms: servers that are compared, running already or started for each of their turns."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from stack_builder.errors import ExitCode, MachineError, UsageError
from stack_builder.report.model import Json

_SERVE = (sys.executable, "-m", "stack_builder", "serve")
_FIRST_PORT = 30100  # of servers that a bench starts; each has one of its own


class Arm(Protocol):
    """A server with one configuration, which may have to be started for each of its turns."""

    @property
    def name(self) -> str:
        """As the user calls it."""

    def start(self) -> tuple[str, Mapping[str, Json]]:
        """Make it ready; gives its URL and what is known of how it was started.

        Raises:
            MachineError: it does not start.
        """

    def stop(self) -> None:
        """Give up what :meth:`start` took."""


@dataclass(frozen=True, slots=True)
class GivenUrl:
    """An arm that is running already, and stays."""

    name: str
    url: str

    def start(self) -> tuple[str, Mapping[str, Json]]:
        """See :class:`Arm`."""
        return self.url, {}

    def stop(self) -> None:
        """See :class:`Arm`."""


@dataclass(slots=True)
class ServedArm:
    """An arm that ``stackb serve`` starts and stops, as a user would."""

    name: str
    words: tuple[str, ...]
    port: int

    def start(self) -> tuple[str, Mapping[str, Json]]:
        """Start it, wait until it is ready, and keep the report on what is active in it.

        Raises:
            MachineError: it did not start; where ``stackb serve`` says why, so does this.
        """
        call = [*_SERVE, *self.words, "--port", str(self.port), "--detach", "--format", "json"]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (ExitCode.CLEAN, ExitCode.FINDINGS):
            raise MachineError("stackb serve could not start it; its reason stands above", where=f"arm {self.name}")
        report = json.loads(done.stdout)
        if report["target"]["kind"] != "server" or "ready_after_s" not in report["facts"]:
            cause = "; ".join(finding["title"] for finding in report["findings"])
            raise MachineError(
                f"the server did not start: {cause}", where=f"arm {self.name}", fix="run it with stackb serve"
            )
        return report["facts"]["url"], {"serve": list(self.words), **report["facts"], "findings": report["findings"]}

    def stop(self) -> None:
        """Stop it with all its children."""
        subprocess.run([*_SERVE, "--stop", "--port", str(self.port)], stdout=subprocess.DEVNULL, check=False)


def parse_arms(urls: Sequence[str], pairs: Sequence[str], served: Sequence[str]) -> list[Arm]:
    """Read the arms of a call, in order: URLs, running servers by name, servers to start.

    Raises:
        UsageError: none, one without a name, two with the same, or arguments that no shell could split.
    """
    arms: list[Arm] = [GivenUrl(urlsplit(url).netloc or url, url) for url in urls]
    arms += [GivenUrl(*_named(text, "--pair")) for text in pairs]
    for number, text in enumerate(served):
        name, words = _named(text, "--arm")
        try:
            arms.append(ServedArm(name, tuple(shlex.split(words)), _FIRST_PORT + number))
        except ValueError as error:
            raise UsageError(f"{str(error).lower()} in '{words}'", where="--arm", fix="close the quotes") from error
    if not arms:
        raise UsageError("nothing to measure", fix="give a URL, or arms with --pair NAME=URL or --arm NAME=ARGS")
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise UsageError("two arms have the same name", where=", ".join(names), fix="name each with --pair NAME=URL")
    return arms


def _named(text: str, option: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not name.strip() or not rest.strip() or "://" in name:
        raise UsageError(f"'{text}' has no name", where=option, fix="write NAME=…")
    return name.strip(), rest.strip()

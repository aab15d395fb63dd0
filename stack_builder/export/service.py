"""What is exported: one server, or one that spans several nodes, free of anything that only this machine knows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.files import read_regular
from stack_builder.sglang.compile_caches import compile_caches

POLICY_FILE = "/etc/stackb/policy.json"
CACHE = "/var/cache/stackb"
"""Where the server keeps what it compiles and downloads; a volume, so that a restart need not do it again."""

ENVIRONMENT = {**compile_caches(f"{CACHE}/jit"), "HF_HOME": f"{CACHE}/hub"}
KEY_VARIABLE = "STACKB_API_KEY"

HEALTH = "/health"
HEALTH_TIMEOUT = 25
"""Seconds. ``/health`` answers 503 while the server starts; then it generates one token and gives up after 20 s
(``SGLANG_HEALTH_CHECK_TIMEOUT``), so a shorter limit would call a busy server dead. It needs no key
(``sglang/srt/utils/auth.py``). On the other nodes of a group a small server says 200 once the weights are loaded
(``launch_dummy_health_check_server``)."""

MAX_POLICY = 512 << 10  # bytes; a ConfigMap holds 1 MiB in all

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\[\]-]{0,500}@sha256:[0-9a-f]{64}")
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")  # RFC 1035, with room for what controllers append


@dataclass(frozen=True, slots=True)
class Service:
    """One server.

    Attributes:
        name: a DNS label.
        stack: name of the stack.
        image: by digest.
        argv: interpreter and arguments, without the API key and without what says which node it is.
        port: TCP port.
        gpus: on each node.
        nodes: how many the server spans.
        folders: of the nodes, mounted read-only under the same path: models.
        env: variables, on top of :data:`ENVIRONMENT`.
        policy: text of the adaptive policy, mounted at :data:`POLICY_FILE`.
        keyed: clients must send an API key.
        start_minutes: how long a start may take.
        shm_gib: size of ``/dev/shm``; NCCL moves data between GPUs through it.
    """

    name: str
    stack: str
    image: str
    argv: tuple[str, ...]
    port: int
    gpus: int
    nodes: int = 1
    folders: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    policy: str | None = None
    keyed: bool = True
    start_minutes: int = 60
    shm_gib: int = 32

    def __post_init__(self) -> None:
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(
                f"'{self.image[:200]}' is not an image by digest",
                where="--image",
                fix="give HOST/NAME@sha256:…, which stackb push prints",
            )
        if not _LABEL.fullmatch(self.name):
            raise UsageError(
                f"'{self.name[:100]}' is no DNS label (a-z, 0-9 and -, up to 53 characters)", where="--name"
            )
        for folder in self.folders:
            if not Path(folder).is_absolute() or ".." in Path(folder).parts:
                raise UsageError("is not an absolute path on the nodes", where=folder)

    @property
    def environment(self) -> dict[str, str]:
        """All variables, sorted."""
        return dict(sorted({**self.env, **ENVIRONMENT}.items()))


def label(stack: str) -> str:
    """A DNS label for the name of a stack: ``cu130-sglang-0.5.23`` gives ``cu130-sglang-0-5-23``."""
    text = re.sub(r"[^a-z0-9]+", "-", stack.lower()).strip("-")
    return (text if text[:1].isalpha() else f"s-{text}")[:53].rstrip("-")


def read_policy(path: Path) -> str:
    """Read an adaptive policy, as ``stackb policy`` writes it.

    Raises:
        UsageError: not a JSON object, no regular file, or larger than :data:`MAX_POLICY`.
    """
    try:
        body = jsontext.loads(read_regular(path, MAX_POLICY))
    except IntegrityError as error:
        raise UsageError(error.what, where=path, fix="give the file that stackb policy --output wrote") from error
    except ValueError as error:
        raise UsageError("is not JSON", where=path) from error
    if not isinstance(body, dict):
        raise UsageError("is no JSON object", where=path)
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def with_key(argv: Sequence[str], reference: str) -> list[str]:
    """Arguments with the API key, by a reference that the engine replaces when it starts the server."""
    return [*argv, "--api-key", reference]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Mapping[str, object]], comment: Sequence[str]) -> str:
    """Write YAML documents under a comment."""
    head = "".join(f"# {line}\n" for line in comment)
    return head + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=len(documents) > 1, allow_unicode=True
    )

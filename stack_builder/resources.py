"""The one place that knows where the data folders are: ``checks/``, ``docker/``, ``lockfiles/`` and the cache.

In a checkout they stand at the top level; in an installed wheel below ``stack_builder/_data`` (pyproject.toml puts
them there).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "_data"
_ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent


def checks() -> Path:
    """Rules, error texts and probes."""
    return _ROOT / "checks"


def table(*parts: str) -> dict[str, Any]:
    """What a TOML file below ``checks/`` holds. Its form is held by tests, or by whoever validates it."""
    import tomllib  # not needed by --help

    return tomllib.loads(checks().joinpath(*parts).read_text(encoding="utf-8"))


def docker() -> Path:
    """Base recipes, Dockerfile, entrypoint."""
    return _ROOT / "docker"


def lockfiles() -> Path:
    """One folder per stack; ``STACKB_LOCKFILES`` names another place."""
    override = os.environ.get("STACKB_LOCKFILES")
    return Path(override) if override else _ROOT / "lockfiles"


def cache() -> Path:
    """The user's cache; ``STACKB_CACHE_DIR`` names another place. Not created here."""
    override = os.environ.get("STACKB_CACHE_DIR")
    if override:
        return Path(override)
    from platformdirs import user_cache_path  # not needed by --help

    return user_cache_path("stackb")


def state() -> Path:
    """What must outlive the cache: running servers, the experiment log. ``STACKB_STATE_DIR`` names another place."""
    override = os.environ.get("STACKB_STATE_DIR")
    if override:
        return Path(override)
    from platformdirs import user_state_path  # not needed by --help

    return user_state_path("stackb")

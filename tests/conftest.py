"""Shared fixtures: a private cache per test, and the markers' conditions."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.hardening.plugin import (  # noqa: F401 - pytest finds hooks and fixtures by their names
    hardened,
    held_to_the_document,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_deselected,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_testnodedown,
    sample,
)

# The same examples in every run, however long each takes: `python -m tests.fuzz` is for new ones.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of ``pytest -n``."""
    from tests.spread import Spread

    config.option.loadscopereorder = False
    return Spread(config, log)


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Let Ctrl-C reach what a test starts: what ignores SIGINT, as a shell's background job does, hands that down."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache of its own, so that none leans on what another left."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("STACKB_CACHE_DIR", str(cache))
    return cache


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, saying why."""
    if item.get_closest_marker("docker") and not _docker_answers():
        pytest.skip("no Docker engine answers")
    if item.get_closest_marker("gpu") and shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU")


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0

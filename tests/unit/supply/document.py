"""``docs/signing.md``, to be run as it stands."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.hardening.test_hostile_archives import good
from tests.hardening.tiny import make_tiny

STACKB = """#!/bin/sh
# the tool on a small stack, which the document does not name
case $1 in
    build) shift; set -- build tiny --offline --from wheels --no-bytecode --jobs 1 --base oci:base "$@" ;;
    verify) shift; set -- verify --offline --from wheels "$@" ;;
    sbom) shift; set -- sbom tiny "$@" ;;
esac
exec "{python}" -m stack_builder "$@"
"""


def commands() -> dict[str, list[str]]:
    """The commands that the document shows, in its order, by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    heading = ""
    text = (Path(__file__).parents[3] / "docs" / "signing.md").read_text(encoding="utf-8")
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("    "):
            found.setdefault(heading, []).append(line.partition(" #")[0].strip())
    return found


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the document's ``stackb`` is this one, on a stack of one wheel."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    make_tiny(tmp_path, good())
    tool = tmp_path / "bin" / "stackb"
    tool.parent.mkdir()
    tool.write_text(STACKB.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path

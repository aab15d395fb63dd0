"""``make audit``: what pip-audit's answers mean, from recorded forms of its JSON (pip-audit 2.10.1)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[3] / ".ci" / "audit"
CLEAN = {"name": "idna", "version": "3.10", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.9.1+cu130)"}
KNOWN = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.3"], "aliases": ["CVE-2014-0012"], "description": "x"}],
}


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ([CLEAN], 0, "1 of 1 packages looked up, 0 vulnerabilities known"),
        ([SKIPPED, SKIPPED], 3, "nothing was looked up: the index gave no answer for any of 2 packages"),
        ([CLEAN, SKIPPED], 3, "1 of 2 packages looked up, 0 vulnerabilities known\n    no answer for torch"),
        ([CLEAN, KNOWN, SKIPPED], 1, "jinja2 2.4.1: PYSEC-2014-8, fixed in: 2.7.3"),
        ([], 3, "0 of 0 packages looked up"),
        (None, 3, "not audited: ERROR:pip_audit._cli:no hash"),
    ],
)
def test_a_package_without_an_answer_is_not_a_clean_one(
    packages: list[object] | None, code: int, says: str, tmp_path: Path
) -> None:
    said = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    (tmp_path / "answer").write_text(said)
    (tmp_path / "pip-audit").write_text(f"#!/bin/sh\necho ERROR:pip_audit._cli:no hash >&2\ncat {tmp_path}/answer\n")
    (tmp_path / "pip-audit").chmod(0o755)
    (tmp_path / "some.txt").write_text("idna==3.10 \\\n    --hash=sha256:00\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, AUDIT, tmp_path / "some.txt"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout


def test_without_pip_audit_nothing_is_clean(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, AUDIT], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert (
        done.stdout.count("pip-audit is not installed")
        == len(list(AUDIT.parents[1].glob("lockfiles/*/stack.toml"))) + 1
    )

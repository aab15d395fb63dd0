"""``stackb fetch`` from the real index, with pip as the second opinion."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.cli.app import run

# Released files do not change; these hashes are those that `pip hash` prints after `pip download`.
WHEELS = {
    "packaging-24.2-py3-none-any.whl": "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
    "six-1.17.0-py2.py3-none-any.whl": "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274",
}


@pytest.mark.online
def test_pip_installs_what_was_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = tmp_path / "demo"
    stack.mkdir()
    (stack / "stack.toml").write_text(
        '[stack]\nname = "demo"\ndescription = "made for a test"\npython = "3.11"\ncuda = "13.0"\n'
        'gpu = ["sm_120"]\nmin_driver = "580"\n[requires]\nsix = "==1.17.0"\n'
        '[base]\nrecipe = "debian-bookworm"\nglibc = "2.36"\n'
    )
    artifacts = [
        {"name": name.split("-")[0], "version": name.split("-")[1], "filename": name, "sha256": sha256, "size": None}
        for name, sha256 in WHEELS.items()
    ]
    lock = {"schema_version": 1, "stack": "demo", "python": "3.11", "platform": "linux_x86_64", "resolver": "none"}
    requirements = "".join(f"{a['name']}=={a['version']} --hash=sha256:{a['sha256']}\n" for a in artifacts)
    (stack / "requirements.txt").write_text(requirements)
    lock |= {"exclude_newer": None, "artifacts": artifacts}
    lock["requirements_sha256"] = hashlib.sha256(requirements.encode()).hexdigest()
    (stack / "artifacts.json").write_text(json.dumps(lock))

    assert run(["fetch", str(stack), "--print-paths"]) == 0
    paths = capsys.readouterr().out.split()
    assert [Path(path).name for path in paths] == list(WHEELS)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "--require-hashes"]
    links = [f"--find-links={Path(path).parent}" for path in paths]
    subprocess.run([*command, *links, "--ignore-installed", "-r", str(stack / "requirements.txt")], check=True)

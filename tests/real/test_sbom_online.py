"""A wheel of the index that carries an SBOM of its own: its parts stand in ours, which CycloneDX's schema accepts."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from stack_builder.cli.app import run

# A released file does not change; its hash is that of the index.
WHEEL = "rpds_py-2026.9.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
SHA256 = "136a1c3fe4402b7008bc81cb62ee538481795b61a7e83df88dff3b3f02b726ff"
SBOM = "rpds_py-2026.9.1.dist-info/sboms/rpds-py.cyclonedx.json"


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """A stack that locks this wheel alone."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "stack.toml").write_text(
        '[stack]\nname = "demo"\ndescription = "made for a test"\npython = "3.11"\ncuda = "13.0"\n'
        'gpu = ["sm_120"]\nmin_driver = "580"\n[requires]\nrpds-py = "==2026.9.1"\n'
        '[base]\nrecipe = "debian-bookworm"\nglibc = "2.36"\n'
    )
    (folder / "requirements.txt").write_text(f"rpds-py==2026.9.1 --hash=sha256:{SHA256}\n")
    artifact = {"name": "rpds-py", "version": "2026.9.1", "filename": WHEEL, "sha256": SHA256, "size": None}
    lock = {"schema_version": 1, "stack": "demo", "python": "3.11", "platform": "linux_x86_64", "resolver": "none"}
    lock |= {"exclude_newer": None, "artifacts": [artifact]}
    lock["requirements_sha256"] = hashlib.sha256((folder / "requirements.txt").read_bytes()).hexdigest()
    (folder / "artifacts.json").write_text(json.dumps(lock))
    return folder


@pytest.mark.online
def test_the_parts_of_a_released_wheel_stand_in_ours(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", str(stack), "--print-paths"]) == 0
    path = capsys.readouterr().out.strip()
    assert run(["sbom", str(stack)]) == 0
    text = capsys.readouterr().out
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    wheel = next(each for each in json.loads(text)["components"] if each["name"] == "rpds-py")
    with zipfile.ZipFile(path) as archive:
        own = archive.read(SBOM)
    # The library inside the wheel is named in the SBOM's metadata; its own purl holds a path of the building machine.
    crates = {each["purl"] for each in json.loads(own)["components"]}
    assert len(crates) == 17
    assert {"pkg:cargo/pyo3@0.29.3", "pkg:cargo/rpds@1.2.1", "pkg:cargo/triomphe@0.1.16"} <= crates
    assert {each["purl"] for each in wheel["components"]} == crates | {"pkg:cargo/rpds-py@2026.9.1"}
    (reference,) = [each for each in wheel["externalReferences"] if each["type"] == "bom"]
    assert (reference["url"], reference["comment"]) == (SBOM, "CycloneDX 1.5")
    assert reference["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(own).hexdigest()}]
    assert "/home/runner" in own.decode()
    assert "/home/" not in text

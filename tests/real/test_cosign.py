"""``docs/signing.md`` with the real cosign 3, offline: runs where it and ``docker-registry`` are on the path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.registry import needs_registry, serving
from tests.unit.supply.document import commands, small  # noqa: F401 - a fixture

IDENTITY = "--yes"  # in the one line that needs the public services
EXAMPLE = "registry.example:5000"
BUNDLES = {"out/stack/stackb-digest.sig": "signature", "provenance.sigstore.json": "sig", "sbom.sigstore.json": "sig"}
"""What is written beside the image, and what its signature is called there."""


def _is_cosign_3() -> bool:
    if shutil.which("cosign") is None:
        return False
    return subprocess.run(["cosign", "signing-config", "create", "--help"], capture_output=True).returncode == 0


pytestmark = [needs_registry, pytest.mark.skipif(not _is_cosign_3(), reason="cosign 3 is not installed")]


def _script(registry: str) -> list[str]:
    """The lines of the sections on keys and on cosign, in the document's order."""
    found = commands()
    lines = [*found["A local key, offline"], *found["cosign, offline"]]
    return [line.replace(EXAMPLE, registry) for line in lines if IDENTITY not in line]


def _bash(*lines: str) -> subprocess.CompletedProcess[str]:
    argv = ["bash", "-e", "-c", "\n".join(lines)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_the_document_signs_and_checks_and_refuses_all_else(
    small: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    monkeypatch.setenv("HOME", str(small / "home"))
    with serving(small / "registry") as port:
        lines = _script(f"127.0.0.1:{port}")
        done = _bash(*lines)
        assert done.returncode == 0, done.stderr
        variables = [line for line in lines if line.startswith(("CHECK=", "HEX="))]
        image = f"IMAGE=127.0.0.1:{port}/team/stack@$(cat digest)"
        checks = [line for line in lines if line.startswith("cosign verify")]

        def passes(check: str, *more: str) -> bool:
            said = _bash(*variables, image, *more, check)
            assert said.returncode == 0 or "Error: " in said.stderr, said.stderr
            return said.returncode == 0

        assert [passes(check) for check in checks] == [True] * 6
        (small / "other").mkdir()
        subprocess.run(["cosign", "generate-key-pair"], cwd=small / "other", check=True, capture_output=True)
        assert [passes(check, "CHECK=${CHECK/cosign.pub/other/cosign.pub}") for check in checks] == [False] * 6

        digest = (small / "digest").read_text()
        (small / "digest").write_text("sha256:" + "0" * 64 + "\n")  # another image
        assert [passes(check) for check in checks] == [False] * 6
        (small / "digest").write_text(digest)

        for name, key in BUNDLES.items():
            whole = (small / name).read_bytes()
            spoiled = bytearray(whole)
            spoiled[whole.index(f'"{key}":"'.encode()) + 30] ^= 1  # a character of base64 stays one, mostly
            (small / name).write_bytes(spoiled)
            (check,) = [line for line in checks if name in line]
            assert not passes(check)
            (small / name).write_bytes(whole)
            assert passes(check)

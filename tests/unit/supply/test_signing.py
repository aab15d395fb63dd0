"""Signatures with a local key, made and checked by openssl, offline."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stack_builder.errors import MachineError, UsageError
from stack_builder.supply.signing import payload, sign, words
from tests.unit.supply.document import commands, small  # noqa: F401 - a fixture

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "a key.pem"
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", path], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", path, "-pubout", "-out", tmp_path / "key.pub"], check=True)
    return path


def _verifies(folder: Path, data: bytes) -> bool:
    command = ["openssl", "dgst", "-sha256", "-verify", folder / "key.pub", "-signature", folder / "image.sig"]
    return subprocess.run(command, input=data, capture_output=True, check=False).returncode == 0


def test_openssl_verifies_what_openssl_signed_and_nothing_else(key: Path, tmp_path: Path) -> None:
    sign(DIGEST, words(f"openssl dgst -sha256 -sign '{key}'"), tmp_path / "image.sig")
    assert _verifies(tmp_path, f"{DIGEST}\n".encode())
    assert not _verifies(tmp_path, payload("sha256:" + "ac" * 32))


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        ("false", MachineError, "failed with exit code 1"),
        ("true", MachineError, "wrote 0 bytes"),
        ("no-such-signer --key k", MachineError, "no such command"),
        ("", UsageError, "is empty"),
        ("sign 'half", UsageError, "cannot be split"),
        ("head -c 1048577 /dev/zero", MachineError, "1048577 bytes"),
    ],
)
def test_a_signature_that_failed_leaves_no_file(
    tmp_path: Path, command: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        sign(DIGEST, words(command), tmp_path / "image.sig")
    assert list(tmp_path.glob("*.sig*")) == []


def test_only_a_digest_is_signed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a digest"):
        sign("sha256:short", ["cat"], tmp_path / "image.sig")


# --- docs/signing.md -------------------------------------------------------------------------------------------------

# what other tests run: tests/real/test_cosign.py, test_registry.py, test_audit.py
ELSEWHERE = ("make audit",)
COSIGN = "cosign, offline"


def test_the_commands_of_the_document_do_what_it_says(small: Path) -> None:  # noqa: F811
    shown = [line for heading, lines in commands().items() for line in lines if heading != COSIGN]
    ran = [line for line in shown if not line.startswith(ELSEWHERE)]
    assert [line.split()[0] for line in ran] == [
        "openssl", "openssl", "stackb", "python3", "openssl", "stackb", "stackb", "stackb"
    ]  # fmt: skip
    said = {}
    for line in ran:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        said[line] = done.stdout
    assert said[ran[4]] == "Verified OK\n"
    assert "nothing is wrong" in said[ran[6]]
    assert json.loads((small / "stack.cdx.json").read_bytes())["bomFormat"] == "CycloneDX"
    (small / "digest").write_text("sha256:" + "0" * 64 + "\n")  # another image
    assert subprocess.run(["bash", "-c", ran[4]], capture_output=True, check=False).returncode == 1


def test_a_signature_does_not_outlive_its_image(small: Path) -> None:  # noqa: F811
    def build(*more: str) -> subprocess.CompletedProcess[str]:
        argv = ["stackb", "build", "--output", "out", *more]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    signature = small / "out" / "stackb-digest.sig"
    assert build("--sign-with", "cat").returncode == 0
    first = signature.read_text()
    assert build().returncode == 0
    assert signature.read_text() == first  # the same image
    (small / "tiny" / "stack.toml").write_text((small / "tiny" / "stack.toml").read_text().replace("13.0", "13.1"))
    failed = build("--sign-with", "false")
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (
        3,
        "stackb: false: the signing command failed with exit code 1. The image itself is there, unsigned; see the "
        "command's own words above, and docs/signing.md.",
    )
    assert not signature.exists()
    assert build("--sign-with", "cat").returncode == 0
    assert signature.read_text() != first
    assert build("--sign-with", "no-such-signer").returncode == 3


def test_the_commands_that_are_not_run_here_are_at_least_bash() -> None:
    for line in commands()[COSIGN]:
        subprocess.run(["bash", "-n", "-c", line], check=True)
